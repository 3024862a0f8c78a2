"""The choice of a cut: what fits and is exact before what is faster, and how to keep less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.plan.partition.chains import plain

from outsize.errors import PlanError
from outsize.plan.partition import Chain
from outsize.plan.staging import StagesAsked, stage_ways, tighter_stages

_ASKED = StagesAsked(2, 8, math.inf, math.inf, 0.0, True, None, False)
_KNOWN = {(f"layer{number}", 0) for number in range(8)}


def _chain(num_samples: int) -> Chain:
    return plain([float(num_samples)] * 8, sizes=[1] * 7, saved=10 * num_samples, state=100)


def test_more_micro_batches_leave_ranks_waiting_less() -> None:
    taken, *others = stage_ways(_ASKED, _chain, _KNOWN)
    assert taken.pipeline.num_micro == 8
    chain = next(each for each in (taken, *others) if not each.partition.folded)
    assert [stage.begins for stage in chain.pipeline.stages] == [("", 0), ("layer4", 0)]
    assert taken.inexact is None
    assert "8 micro-batches" in taken.why()[0]


def test_what_looks_across_samples_has_the_whole_batch_unless_that_may_be_approximate() -> None:
    asked = replace(_ASKED, across_samples="batch norm")
    taken, *others = stage_ways(asked, _chain, _KNOWN)
    assert (taken.pipeline.num_micro, taken.inexact) == (1, None)
    assert any(each.as_rejected(taken).why == "approximate: batch norm" for each in others)
    allowed = stage_ways(replace(asked, approximate=True), _chain, _KNOWN)[0]
    assert allowed.pipeline.num_micro == 1, "exact before approximate"
    small = replace(asked, room_bytes=490.0, approximate=True)  # of two samples at once, not of eight
    assert "approximate: batch norm" in stage_ways(small, _chain, _KNOWN)[0].why()[1]
    with pytest.raises(PlanError, match=r"no cut into stages that fits is exact.*limits.allow_approximate"):
        stage_ways(replace(small, approximate=False), _chain, _KNOWN)


def test_a_stage_begins_with_a_layer_that_the_traced_model_has() -> None:
    ways = stage_ways(_ASKED, _chain, _KNOWN - {("layer4", 0)})
    taken = next(each for each in ways if not each.partition.folded)
    assert taken.pipeline.stages[1].begins == ("layer5", 0)
    with pytest.raises(PlanError, match="no cut into stages was found"):
        stage_ways(_ASKED, _chain, set())


def test_what_cannot_be_cut_is_refused_in_a_line() -> None:
    with pytest.raises(PlanError, match="more stages than layers: found 9 stages"):
        stage_ways(replace(_ASKED, num_stages=9), _chain, _KNOWN)
    with pytest.raises(PlanError, match="of the layer 'layer0' alone do not fit on a rank"):
        stage_ways(replace(_ASKED, room_bytes=99.0), _chain, _KNOWN)


def test_fewer_micro_batches_than_stages_are_told() -> None:
    taken = stage_ways(replace(_ASKED, num_stages=4, num_samples=2), _chain, _KNOWN)[0]
    assert any("fewer micro-batches than stages" in each for each in taken.why())


def test_stages_that_ran_out_of_memory_run_again_and_then_take_less_at_once() -> None:
    pipeline = stage_ways(replace(_ASKED, across_samples="batch norm"), _chain, _KNOWN)[0].pipeline
    again = tighter_stages(pipeline, 8, more_parts=True)
    assert again is not None
    assert all(stage.recomputes for stage in again.stages)
    assert tighter_stages(again, 8, more_parts=False) is None
    smaller = tighter_stages(again, 8, more_parts=True)
    assert smaller is not None
    assert smaller.num_micro == 2
    assert tighter_stages(replace(again, num_micro=8), 8, more_parts=True) is None


def test_the_schedule_is_chosen_by_time_and_memory_and_others_are_told() -> None:
    costly = replace(_ASKED, num_stages=2, num_samples=8)
    free, *others = stage_ways(costly, _chain, _KNOWN)
    assert "8 micro-batches by " in free.name
    schedules = {each.pipeline.schedule for each in (free, *others) if each.pipeline.num_micro == 8}
    assert schedules == {"gpipe", "1f1b", "zero-bubble"}
    tight = replace(costly, room_bytes=float(free.peak_bytes - 1))
    taken, *others = stage_ways(tight, _chain, _KNOWN)
    assert taken.peak_bytes < free.peak_bytes
    assert any("needs" in each.as_rejected(taken).why for each in others if not each.fits)
