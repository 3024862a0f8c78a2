"""Batches in turns, up to the one that has no room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from outsize.bench import apart, batches
from outsize.bench.apart import GivenStep
from outsize.bench.batches import BatchEntry, Expected, measure_batches, rounds_apart
from outsize.errors import RanksError
from outsize.job import TrainSection
from outsize.measurement import Figure
from outsize.models import build_model
from outsize.progress import Reporter
from outsize.train.made_up import MadeUpStep


def _round(order: Sequence[int]) -> Iterator[tuple[int, float, dict[str, Any]]]:
    used = dict.fromkeys(("gpu_use", "cpu_load", "gpu_bytes", "gpu_own_bytes"))
    for batch in order:
        yield batch, 0.1 * batch, {**used, "host_bytes": 2**40}


def _measured(made_up: MadeUpStep, expect_bytes: int = 0, **changes: object) -> list[BatchEntry]:
    def step_for(batch: int) -> MadeUpStep:
        if batch == 3:
            raise ValueError("Expected more than 1 value per channel")
        return made_up

    how = {"limit_bytes": 2**30, "rounds": 2, "max_s": 60.0, "reporter": Reporter("quiet")}
    expect = lambda batch: Expected(batch * expect_bytes, 0.1 * batch)  # noqa: E731
    return measure_batches([1, 2, 3, 4], step_for, expect, _round, **{**how, **changes})  # type: ignore[arg-type]


def test_each_batch_that_runs_has_its_turns(made_up: MadeUpStep) -> None:
    rows = [each.as_row() for each in _measured(made_up)]
    assert [each["batch"] for each in rows] == [1, 2, 3, 4]
    assert rows[2]["failed"] == "does not run: Expected more than 1 value per channel"
    assert "step_s" not in rows[2]
    for row in (rows[0], rows[3]):
        assert row["failed"] is None
        assert row["step_s"]["repeats"] == 2
        assert row["peak_bytes"] > 0
        assert row["host_bytes"] > row["peak_bytes"]
        assert row["gpu_use"] is row["gpu_bytes"] is row["gpu_own_bytes"] is None
    step, rate = (rows[3][name]["median"] for name in ("s_per_sample", "samples_per_s"))
    assert 4 * step == pytest.approx(rows[3]["step_s"]["median"])
    assert rate == pytest.approx(10.0)


def test_a_round_is_taken_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "START", "forkserver")
    monkeypatch.setattr(batches, "_TURN_S", 0.0)
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4)
    given = GivenStep("segment", model, TrainSection(batch=2, tile_px=32), 2, 3, "cpu", bf16=False)
    before = [each.clone() for each in model.parameters()]
    found = list(rounds_apart(given, 2**30)([2, 1]))
    assert [each[0] for each in found] == [2, 1]
    assert all(step_s > 0 and used["host_bytes"] > 0 for _, step_s, used in found)
    assert all(map(torch.equal, before, model.parameters()))
    with pytest.raises(RanksError, match=r"a process that measures ended: found .*negative"):
        list(rounds_apart(given.with_batch(-1), 2**30)([-1]))


def test_what_has_no_room_on_the_host_is_not_run_and_ends_the_list(made_up: MadeUpStep) -> None:
    found = _measured(made_up, expect_bytes=2**29)
    assert [each.batch for each in found] == [1, 2, 3, 4]
    assert found[3].failed == "out of memory: 2.0 GiB predicted, 1.0 GiB there"
    assert found[3].steps_s == []
    found = _measured(made_up, expect_bytes=2**30)
    assert [each.batch for each in found] == [1, 2]
    assert found[1].is_over


def test_memory_that_runs_out_is_told(made_up: MadeUpStep, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(batches, "weigh_on_cpu", run_out)
    (only,) = _measured(made_up)
    assert only.failed == "out of memory: 1.0 GiB there"
    assert only.steps_s == []


def test_there_are_no_more_rounds_when_time_is_over_but_enough_for_a_spread(made_up: MadeUpStep) -> None:
    found = _measured(made_up, max_s=0.0, rounds=9)
    assert [each.batch for each in found] == [1]  # no time for more
    assert {len(each.steps_s) for each in found if each.failed is None} == {batches.LEAST_ROUNDS}


def test_two_measurements_agree_where_they_overlap() -> None:
    entry = BatchEntry(4, Expected(1, 1.0), steps_s=[0.9, 1.0, 1.1])
    other = replace(entry, steps_s=[1.1, 1.15, 1.2])
    one, two = (Figure(**each.as_row()["step_s"]) for each in (entry, other))
    assert one.agrees_with(two)
    assert not one.agrees_with(Figure.of([1.5, 1.5, 1.5]))
