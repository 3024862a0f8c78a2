"""`outsize bench profile`: a small job taken apart from end to end."""

from __future__ import annotations

import hashlib
import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outsize.bench import taken_apart
from outsize.commands.bench import profile
from outsize.measurement import read_measurement
from outsize.progress import Reporter
from outsize.report.tables import profile_lines
from outsize.session import profiling
from outsize.train.feed import BatchMaker


def test_a_step_is_taken_apart(job_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = profile(job_path, overrides=(), device_name="cpu", out=out, reporter=Reporter("quiet"), steps=3)
    assert read_measurement(out / "bench/profile.json") == found
    assert sum(found.about["parts"].values()) == pytest.approx(1.0)
    assert found.about["parts"]["launch gaps"] == 0.0
    assert found.about["step_s"]["repeats"] == 3
    assert found.about["around"]["twice_s"] > 0
    assert found.about["verdict"]["sentence"] in profile_lines(found)[-1]
    assert any("no GPU" in line for line in profile_lines(found))
    trace = json.loads((out / "bench/profile-trace.json").read_text())
    steps = [each for each in trace["traceEvents"] if each.get("name") == "step" and each["ph"] == "X"]
    assert len(steps) == 4
    picture = ET.parse(out / "bench/profile.svg").getroot()
    assert picture.tag.endswith("svg")
    assert not (out / "checkpoints").exists()


def _burn(for_s: float) -> None:
    """Compute for so long of this thread's own time, as decoding does: others may go on meanwhile."""
    data, end_s = bytes(2**20), time.thread_time() + for_s
    while time.thread_time() < end_s:
        hashlib.sha256(data)


@pytest.mark.parametrize(
    ("beside", "steps_s", "cause", "told"),
    [
        (lambda: time.sleep(0.3), 0.0, "slow reader", "move the data to a faster disk"),
        pytest.param(
            lambda: _burn(0.3),
            0.0,
            "too few workers",
            "raise train.workers from 1 to 4",
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda: None,
            0.2,
            "compute-bound",
            "only less work, lower precision or a faster device",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_provoked_cause_is_the_verdict(
    job_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    beside: Callable[[], None],
    steps_s: float,
    cause: str,
    told: str,
) -> None:
    """A real profile of a real training, whose batches or steps are made long."""
    make, step_of, around_of = BatchMaker.__call__, profiling._step, profiling.around_of

    def make_slowly(maker: BatchMaker, *where: Any) -> Any:
        beside()
        return make(maker, *where)

    def step_slowly(*given: Any) -> Callable[[Any], object]:
        run = step_of(*given)
        return lambda batch: (run(batch), _burn(steps_s))

    def on_four_cores(*given: Any) -> Any:
        return replace(around_of(*given), cores=4, twice_s=None)  # whatever machine runs the tests

    # others on the machine that runs the tests may hold a thread up: what computes here, computes
    monkeypatch.setattr(taken_apart, "crowding", lambda: 20.0)
    monkeypatch.setattr(BatchMaker, "__call__", make_slowly)
    monkeypatch.setattr(profiling, "_step", step_slowly)
    monkeypatch.setattr("outsize.session.profiling.around_of", on_four_cores)
    monkeypatch.setattr(taken_apart, "_NUM_MADE", 2)
    monkeypatch.setattr(profiling, "_NUM_PROFILED", 1)
    overrides = ["train.workers=1", "train.epochs=9"]
    how = {"device_name": "cpu", "out": tmp_path / "out", "reporter": Reporter("quiet"), "steps": 2}
    found = profile(job_path, overrides=overrides, **how)
    verdict = found.about["verdict"]
    assert verdict["cause"] == cause, found.about
    assert told in verdict["sentence"]
