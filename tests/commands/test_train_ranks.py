"""`outsize train` over ranks as a user starts it: what ends in one line, and what a killed rank costs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from tests.ranks.started import free_port, rank_of, run

from outsize.cli import main
from outsize.runs import RunFolder
from outsize.session import among


def _train(words: list[str], folders: list[str]) -> None:
    """Be one rank that runs a command line, in a folder of its own."""
    among._SEEN_S = 0.5
    rank = int(os.environ["RANK"])
    os.chdir(folders[rank % len(folders)])
    sys.argv = ["outsize", "train", *words, *os.environ.get("MORE", "").split()]
    main()


def _ranks(
    folder: Path, size: int, *words: str, more: str = "", folders: list[str] | None = None
) -> list[str]:
    """Run a command line on ranks, `more` of it on the last one; return what they say on a line of `outsize:`."""
    port = free_port()
    ranks = [rank_of(rank, size, port, MORE=more if rank == size - 1 else "") for rank in range(size)]
    work = partial(_train, ["--device", "cpu", *words], folders or [str(folder)])
    said = run(folder, *ranks, work=work)
    assert not [each for each in said if "Traceback" in each], said
    return ["\n".join(line for line in each.splitlines() if line.startswith("outsize:")) for each in said]


def test_more_ranks_than_samples_or_rows_are_refused(job_path: Path, tmp_path: Path) -> None:
    asked = ("--quiet", "--spread", "exchange", "--set", "train.tile_px=8")
    first, *others = _ranks(tmp_path, 3, str(job_path), *asked)
    assert "a picture is too small for 3 ranks along a side: found 8 px, needed at least 12 px" in first
    assert "there are more GPUs than samples in a batch: found --gpus 3 for train.batch = 2" in first
    assert others == ["", ""]


def test_a_mistake_in_the_job_is_reported_once(job_path: Path, tmp_path: Path) -> None:
    said = _ranks(tmp_path, 2, str(job_path), "--set", "train.lrr=1")
    assert "unknown key 'train.lrr'" in said[0]
    assert said[1] == ""


def test_ranks_with_other_jobs_are_told_apart(job_path: Path, tmp_path: Path) -> None:
    first, second = _ranks(tmp_path, 2, str(job_path), more="--set train.lr=2")
    assert first.startswith("outsize: rank 1 has another job: found ")
    assert second.startswith("outsize: rank 0 has another job: found ")


def test_a_run_that_is_not_shared_is_refused(job_path: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there"]
    for each in folders:
        each.mkdir()
    first, second = _ranks(
        tmp_path, 2, str(job_path), "--set", "run=run", folders=[str(each) for each in folders]
    )
    assert first.startswith("outsize: run run is not shared: found rank 1 on ")
    assert second == ""
    assert list(folders[0].iterdir()) == []


def _start(job: Path, run: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "outsize", "train", str(job), "--gpus", "2", "--device", "cpu"]
    command += ["--set", f"run={run}", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _long_job(job_path: Path) -> Path:
    text = job_path.read_text().replace("epochs = 2", "epochs = 12\ncheckpoint_steps = 2")
    job_path.write_text(text)
    return job_path


@pytest.mark.long
def test_a_training_whose_ranks_are_killed_ends_with_the_same_weights(job_path: Path, tmp_path: Path) -> None:
    job, draws = _long_job(job_path), random.Random(5)
    undisturbed = _start(job, tmp_path / "undisturbed")
    assert undisturbed.wait() == 0
    expected = load_file(RunFolder(tmp_path / "undisturbed").last)
    num_killed = 0
    for number in range(5):
        run = RunFolder(tmp_path / f"killed-{number}")
        began = _start(job, run.path)
        moment = draws.randrange(0, 40)  # steps; the last ones may be over before
        victim = _rank_of(began.pid, draws.randrange(2))
        while began.poll() is None and _num_steps(run) < moment:
            time.sleep(0.02)
        if victim.is_running():
            victim.kill()
            num_killed += 1
        said = began.communicate()[0]
        assert began.returncode == 0, said
        for name, value in load_file(run.last).items():
            assert value.equal(expected[name]), name
        if "was killed by SIGKILL in" in said:
            assert "all ranks start over" in said
    assert num_killed


def _rank_of(launcher: int, rank: int) -> psutil.Process:
    """Wait for a rank that a launcher starts."""
    while True:
        for each in psutil.Process(launcher).children():
            with suppress(psutil.NoSuchProcess):  # what has ended meanwhile
                if each.environ().get("RANK") == str(rank):
                    return each
        time.sleep(0.05)


def _num_steps(run: RunFolder) -> int:
    if not run.metrics.exists():
        return 0
    lines = [line for line in run.metrics.read_text().splitlines() if line.endswith("}")]
    return max((json.loads(line)["step"] for line in lines), default=0)


@pytest.mark.long
def test_a_signal_to_the_launcher_saves_on_all_ranks(job_path: Path, tmp_path: Path) -> None:
    job, run = _long_job(job_path), RunFolder(tmp_path / "stopped")
    began = _start(job, run.path)
    while not run.metrics.exists() and began.poll() is None:
        time.sleep(0.05)
    began.send_signal(signal.SIGTERM)
    said = began.communicate()[0]
    assert began.returncode == 128 + signal.SIGTERM, said
    assert said.count("outsize:") == 1, said
    assert "--gpus 2" in said.splitlines()[-1]
    assert run.state.exists() == ("saved at step" in said)
