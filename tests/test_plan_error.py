"""The benchmark of predictions, run from end to end on tiny networks: on the CPU the model of a step must be right."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from outsize.plan.machines import find_machine
from outsize.plan.search.timeline import Link
from outsize.plan.times import Clock

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def plan_error(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import plan_error

    return plan_error


@pytest.mark.long
def test_predicted_memory_is_what_lives(
    plan_error: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "new" / "table"
    tiny, every = plan_error.Network("unet", {"width": 8, "levels": 3}), plan_error.cases
    monkeypatch.setattr(plan_error, "TINY", (tiny, tiny))
    # the second network has a second size, and what the first has
    second = lambda device, **options: list(every(device, **options))[4:]  # noqa: E731
    monkeypatch.setattr(plan_error, "cases", second)
    rows = plan_error.main(["--device", "cpu", "--quick", "--out", str(place)])
    assert [row for row in rows if "failed" in row] == []
    assert {row["way"] for row in rows} == {"plain", "recompute", "blocks", "predict"}
    wrong = {plan_error.line(row) for row in rows if abs(row["error"]) > 0.02}
    assert wrong == set()
    named = {(row["model"], row["side_px"], row["precision"]): {} for row in rows}
    for row in rows:
        named[row["model"], row["side_px"], row["precision"]][row["way"]] = row["measured_mib"]
    for ways in named.values():
        assert "plain" not in ways or max(ways["recompute"], ways["blocks"]) < ways["plain"]
    # a profiled step predicts other sizes, and not its own
    assert {row["time_error"]["profiled"] is None for row in rows} == {True, False}
    tree = json.loads(place.with_suffix(".json").read_text())
    assert tree["rows"] == json.loads(json.dumps(rows))
    assert place.with_suffix(".md").read_text().count("\n| unet |") == sum(
        row["model"] == "unet" for row in rows
    )


@pytest.mark.long
def test_a_row_that_fails_is_not_the_end(
    plan_error: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = plan_error.TINY[0]

    def cases(device: str, **_: object) -> list[object]:
        return [plan_error.Case(small, side, 1, False, training=False) for side in (32, 48)]

    def failing(ready: object) -> object:
        raise RuntimeError("CUDA out of memory\nmore")

    monkeypatch.setattr(plan_error, "cases", cases)
    monkeypatch.setattr(plan_error, "peak_on_cpu", failing)
    rows = plan_error.main(["--device", "cpu", "--quick", "--out", str(tmp_path / "table")])
    assert [row["failed"] for row in rows] == ["RuntimeError: CUDA out of memory"] * 2
    assert "2 failed" in capsys.readouterr().out
    rows = plan_error.main(["--device", "cpu", "--quick", "--seconds", "0", "--out", str(tmp_path / "table")])
    assert [row["failed"] for row in rows] == ["not reached in the time given"] * 2


def test_what_moving_speed_moves_is_what_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import moving_speed
    from plan_error import build
    from plan_error_measured import Case, Network
    from plan_error_predicted import traced

    network = Network("unet", {"width": 32, "levels": 2})
    case = Case(network, 128, 2, bf16=False, training=True)
    cost = traced(build(network), case, torch.device("cpu"), None)
    clock = Clock(find_machine("h200").rates, tf32=True, overlaps=True)
    swap, timeline = moving_speed.plan_moves(cost, clock, Link(1e15, 1e15), 2**24)
    assert sum(each.size_bytes for each in swap.moved) >= 2**24
    assert timeline.peak_bytes < cost.peak_bytes()
