"""`outsize tune` as a user meets it: refusals in one line, real trials, a stop in the middle, the report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outsize.job import load_job

_TUNE = "\n[tune]\ntrain.lr = {low = 1e-3, high = 1e-2, log = true}\nmodel.width = [4, 6]\n"


@pytest.fixture
def tuned_job(job_path: Path) -> Path:
    job_path.write_text(job_path.read_text() + _TUNE)
    return job_path


def test_refusals_are_one_line(run, job_path, tmp_path):
    run("tune", job_path).refused("does not say what may vary", "[tune]")
    job_path.write_text(job_path.read_text() + _TUNE)
    storage = f"sqlite:///{tmp_path / 'nowhere' / 'study.db'}"
    error = run("tune", job_path, "--storage", storage).refused("the database sqlite:///", "does not answer")
    assert " after " in error
    run("tune", job_path, "--set", "model.levels=99", "--set", "train.lrr=1").refused("train.lrr")


@pytest.mark.long
def test_trials_are_trained_and_told_and_the_report_shows_them(run, tuned_job):
    folder = Path(load_job(tuned_job).run)
    done = run("tune", tuned_job, "--trials", "3", "--set", "train.epochs=1")
    assert done.code == 0, done.err
    told = json.loads(done.out.splitlines()[-1])
    assert [each["state"] for each in told["rows"]].count("done") >= 1
    assert load_job(folder / "tune/best.toml").model.name == load_job(tuned_job).model.name
    again = run("tune", tuned_job, "--trials", "3", "--set", "train.epochs=1")
    assert json.loads(again.out.splitlines()[-1])["rows"] == told["rows"]
    assert run("report", folder).code == 0
    page = (folder / "report.html").read_text()
    assert re.search(r"<h3>Tuning</h3>", page)
    assert "over train.lr" in page
    # too little for any of them
    tiny = run(
        "tune", tuned_job, "--trials", "1", "--set", "limits.host_memory='1MiB'", "--set", f"run={folder}-2"
    )
    assert "does not fit" in tiny.out


@pytest.mark.long
def test_a_stopped_tuning_goes_on_with_its_trial(tuned_job):
    folder = Path(load_job(tuned_job).run)
    words = [
        sys.executable,
        "-m",
        "outsize",
        "tune",
        str(tuned_job),
        "--trials",
        "1",
        "--set",
        "train.epochs=400",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = folder / "tune/trials/0000/metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    _, error = process.communicate()
    assert process.returncode == 143
    assert "are kept; to continue: outsize tune" in error
    last = metrics.read_text().splitlines()[-1]
    again = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while last in metrics.read_text().splitlines()[-1]:
        assert again.poll() is None, again.communicate()
        time.sleep(0.1)
    assert last in metrics.read_text()
    os.kill(again.pid, signal.SIGKILL)
    again.communicate()
