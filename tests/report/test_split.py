"""What a step's time went to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outsize.report.split import split_of_run, split_steps


def _step(number: int, **times: float) -> dict[str, Any]:
    return {"kind": "step", "step": number, **times}


def test_the_parts_are_all_of_a_step() -> None:
    steps = [_step(10, step_s=0.4, wait_s=0.1, copy_s=0.02), _step(20, step_s=0.2, wait_s=0.0, copy_s=0.02)]
    moved = {"num_timed": 2, "num_forwards": 20, "stall_s": 0.06}
    found = split_steps(steps, [{"moved": moved}])
    assert found is not None
    assert found.num_steps == 20
    assert found.waiting_s == pytest.approx(0.05)
    assert found.copying_s == pytest.approx(0.02)
    assert found.swapping_s == pytest.approx(0.03)  # 0.03 s a forward, of which there is one in a step
    assert sum(seconds for _, seconds in found.parts()) == pytest.approx(found.step_s) == pytest.approx(0.3)
    assert found.line().startswith(
        "a step took 300.0 ms: waiting for data 16.7%, copying 6.7%, swapping 10.0%"
    )


def test_steps_after_the_last_logged_one_count() -> None:
    found = split_steps([_step(10, step_s=0.4), _step(20, step_s=0.2)], [{"step": 11}, {"step": 22}])
    assert found is not None
    assert found.num_steps == 22


def test_runs_of_before_know_no_copies_and_short_ones_nothing(tmp_path: Path) -> None:
    found = split_steps([_step(10, step_s=0.4, wait_s=0.1)], [{"moved": None}, {}])
    assert found is not None
    assert (found.copying_s, found.swapping_s, found.computing_s) == (0.0, 0.0, pytest.approx(0.3))
    assert split_steps([], []) is None
    assert split_of_run(tmp_path / "metrics.jsonl") is None
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 10, "step_s": 0.5, "wait_s": 0.2}\n')
    whole = split_of_run(tmp_path / "metrics.jsonl")
    assert whole is not None
    assert whole.computing_s == pytest.approx(0.3)
