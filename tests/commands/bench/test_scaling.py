"""`outsize bench scaling`: two ranks of a small job, its section of a report, and mistakes in a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.commands.conftest import Run

from outsize.bench import scaling as module
from outsize.commands.bench import scaling
from outsize.measurement import read_measurement
from outsize.progress import Reporter
from outsize.report.gather import gather
from outsize.report.sections.benches import show_scaling


@pytest.mark.long
def test_two_ranks_are_measured_and_reported(
    job_path: Path, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_S", 0.0)
    out = tmp_path / "out"
    how = {"device_name": "cpu", "out": out, "reporter": Reporter("quiet"), "minutes": 0.0}
    found = scaling(job_path, overrides=(), num_ranks="1,2", rounds=3, **how)
    assert read_measurement(out / "bench/scaling.json") == found
    assert [(each["regime"], each["num_ranks"], each["batch"]) for each in found.rows] == [
        ("weak", 2, 4),
        ("strong", 2, 2),
    ]
    run = tmp_path / "reported"
    shutil.copytree(trained_run, run)
    shutil.copytree(out / "bench", run / "bench")
    page = str(show_scaling(gather(run)))
    assert "Scaling over ranks" in page
    assert "communication" in page


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--gpus", "1"), ("nothing to compare", "--gpus 1", "1,2")),
        (("--gpus", "1,4"), ("more ranks than samples", "4 ranks for train.batch = 2")),
        (("--gpus", "x"), ("--gpus", "'x'")),
    ],
)
def test_a_mistake_is_one_line(
    run: Run, job_path: Path, options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    run("bench", "scaling", job_path, *options, "--device", "cpu").refused(*parts)
