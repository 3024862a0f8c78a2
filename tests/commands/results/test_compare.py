"""`outsize compare`: runs, benches, published tables and other machines on one page."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.commands.conftest import Run

from outsize.commands.results.compare import compare
from outsize.measurement import Figure, Fingerprint, MeasuredJob, Measurement, write_measurement
from outsize.progress import Reporter
from outsize.report.published import NAMES, published

_NASTY = "<script>alert(1)</script>"
_HOW: dict[str, Any] = {"published": False, "elsewhere": False, "prices": (), "overwrite": False}
_RATE = Figure(4.0, 0.1, 3).as_dict()
_BATCH = Measurement(
    kind="batch",
    machine=Fingerprint("cpu", _NASTY, 2, 2**33, limits={"host_memory": 2**31}),
    job=MeasuredJob("unet", 2, 64, "fp32"),
    versions={"torch": "2.11"},
    command="outsize bench batch job.toml",
    when="2026-11-19T12:00:00+00:00",
    rows=(
        {
            "batch": 2,
            "failed": None,
            "peak_bytes": 2**20,
            "predicted_peak_bytes": 2**20,
            "step_s": _RATE,
            "s_per_sample": _RATE,
            "samples_per_s": _RATE,
            "cpu_load": 0.5,
            "gpu_use": None,
            "gpu_bytes": None,
            "host_bytes": 2**30,
        },
        {"batch": 4, "failed": "out of memory: 3 GiB predicted"},
    ),
)
_PARTS = {"waiting for data": 0.4, "compute": 0.6}
_PROFILE = replace(
    _BATCH,
    kind="profile",
    rows=(),
    about={
        "parts": _PARTS,
        "step_s": _RATE,
        "copied_bytes_per_s": {},
        "verdict": {"sentence": "the CPU waits 40% of the step for data"},
    },
)


def _page(paths: list[Path], out: Path, **changes: Any) -> str:
    compare(paths, out=out, reporter=Reporter("quiet"), **{**_HOW, **changes})
    return out.read_text()


@pytest.fixture
def measured_run(trained_run: Path, tmp_path: Path) -> Path:
    run = tmp_path / "mine"
    shutil.copytree(trained_run, run)
    for each in (_BATCH, _PROFILE):
        write_measurement(run / f"bench/{each.kind}.json", each)
    (run / "bench/profile-trace.json").write_text('{"traceEvents": []}')
    return run


def test_runs_and_benches_are_side_by_side(measured_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "theirs.json"
    write_measurement(file, _BATCH)
    page = _page([measured_run, file], tmp_path / "compare.html", prices=["mine=3600"])
    for text in ("mine", "theirs", "out of memory: 3 GiB predicted", "no GPU", "the CPU waits 40%", "±"):
        assert text in page, text
    assert _NASTY not in page
    assert page.count("<script>") == 1
    assert "http://" not in page
    assert "https://" not in page
    assert "Published" not in page
    usage = json.loads((measured_run / "usage.json").read_text())["train"]
    assert f">{usage['seconds']:.2f}<" in page  # at 3600 an hour a second costs 1


def test_published_tables_say_where_they_are_from(tmp_path: Path) -> None:
    page = _page([], tmp_path / "compare.html", published=True)
    for name in NAMES:
        assert published(name).title in page


def test_a_run_is_predicted_for_every_machine(measured_run: Path, tmp_path: Path) -> None:
    page = _page([measured_run], tmp_path / "compare.html", elsewhere=True)
    assert "Is it worth moving? mine" in page
    for name in ("H200", "Tesla K80", "Tesla P100", "IBM AC922"):
        assert name in page
    assert "± 30%" in page


def test_what_cannot_be_predicted_is_named(measured_run: Path, tmp_path: Path) -> None:
    job = (measured_run / "job.toml").read_text()
    (measured_run / "job.toml").write_text(job.replace("train-", "gone-"))
    page = _page([measured_run], tmp_path / "compare.html", elsewhere=True)
    assert "mine is not predicted for other machines" in page


def test_mistakes_are_one_line(run: Run, tmp_path: Path, trained_run: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": 9}')
    run("compare", broken, "--out", tmp_path / "c.html").refused("newer schema", "found 9")
    run("compare", "--out", tmp_path / "c.html").refused("nothing to compare", "--published")
    run("compare", tmp_path / "nowhere", "--out", tmp_path / "c.html").refused("nowhere")
    run("compare", trained_run, "--here", "--price", "cheap", "--out", tmp_path / "c.html").refused(
        "--price", "'cheap'"
    )
    (tmp_path / "other.html").write_text("mine")
    run("compare", trained_run, "--here", "--out", tmp_path / "other.html").refused("other.html")
