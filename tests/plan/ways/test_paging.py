"""A recorded step that has its memory by pages: taken where gaps between tensors would not fit, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outsize.plan.cost import StepCost
from outsize.plan.memory.swap import find_points
from outsize.plan.plan import Plan, plan_from_dict
from outsize.plan.search.timeline import Link
from outsize.plan.step import Saved, StepFacts
from outsize.plan.way import StepRequest
from outsize.plan.ways.ladder import choose
from outsize.plan.ways.paging import paged_room_bytes
from outsize.plan.ways.ways import plain
from outsize.tiles.halo import Halo, Reach

Chain = Callable[..., StepFacts]


@pytest.fixture
def task(chain: Chain) -> StepRequest:
    """A step of 6 GiB on a GPU, whose tensors of 0.2 GiB take no gap of another."""
    facts = chain(4, 1024, num_layers=10, bytes_per_px=48)
    halo = Halo(Reach(6, 6), Reach(6, 6), 4)
    return StepRequest(
        4,
        1024,
        lambda *_: facts,
        lambda op: (op.flops + op.moved_bytes) * 1e-14,
        halo,
        across_samples="norm",
        across_pixels="norm",
        link=Link(50e9, 50e9),
    )


def _planned(task: StepRequest, limit_bytes: float, usable: float = 0.9) -> Plan:
    found = choose(task, limit_bytes=int(limit_bytes), budget_bytes=usable * limit_bytes, approximate=False)
    assert isinstance(found, Plan)
    return found


def test_pages_are_taken_where_they_make_a_step_faster_and_said_so(task: StepRequest) -> None:
    limit_bytes = 0.5 * plain(task).peak_bytes
    called, paged = (_planned(replace(task, pages=pages), limit_bytes) for pages in (False, True))
    assert not called.paged
    assert paged.paged
    assert paged.graph
    assert paged.is_recordable
    assert paged.is_tight
    assert "recorded, memory by pages" in paged.why[-1]
    assert paged.step_s is not None
    assert called.step_s is not None
    assert paged.step_s <= called.step_s
    assert (
        0.9 * limit_bytes < paged.peak_bytes <= paged_room_bytes(limit_bytes)
    )  # tensors with gaps may fill less
    assert paged_room_bytes(limit_bytes) < 0.99 * limit_bytes
    assert not paged.plain().paged
    assert plan_from_dict(paged.as_dict()) == paged


def test_what_fits_with_gaps_needs_no_pages(task: StepRequest) -> None:
    plain_bytes = plain(task).peak_bytes
    whole = _planned(replace(task, pages=True), 1.2 * plain_bytes)
    assert (whole.paged, whole.recompute, whole.swap) == (False, None, None)
    # tensors of one size leave no gaps: by some limits what has to go is more than enough
    shares = [0.5 + 0.06 * number for number in range(7)]
    plans = [_planned(replace(task, pages=True), share * plain_bytes, usable=1.0) for share in shares]
    assert all(plan.is_tight for plan in plans)
    without = [plan for plan in plans if not plan.paged]
    assert 0 < len(without) < len(plans)
    assert not any(plan.graph for plan in without)


def test_a_step_in_which_nothing_is_given_up_may_need_pages(task: StepRequest) -> None:
    plan = _planned(replace(task, pages=True), 1.06 * plain(task).peak_bytes)
    assert plan.paged
    assert (plan.recompute, plan.swap) == (None, None)
    assert plan.is_tight  # what validates has no room beside it
    assert "nothing given up, recorded, memory by pages" in plan.why[-1]


def test_no_pages_on_a_cpu_nor_of_a_little_memory(task: StepRequest) -> None:
    limit_bytes = 0.5 * plain(task).peak_bytes
    on_cpu = replace(task, pages=True, overlaps=False, link=None)
    assert not _planned(on_cpu, limit_bytes).paged
    little = replace(task, pages=True, step_of=lambda *_: small)
    small = replace(task.step_of(4, 1024), storages=_smaller(task.step_of(4, 1024)))
    assert not _planned(little, 0.6 * plain(little).peak_bytes).paged


def _smaller(facts: StepFacts) -> tuple[object, ...]:
    return tuple(replace(each, size_bytes=each.size_bytes // 64) for each in facts.storages)


def test_what_leaves_late_does_so_before_the_first_tensor_that_is_unpacked_then(chain: Chain) -> None:
    facts = chain(4, 64)
    norm = next(each for each in facts.saved if each.key[0].endswith("norm"))
    extra = len(facts.storages)
    # the norm also saves its statistics, after what it normed
    kept = replace(facts.storages[norm.storage], index=extra, size_bytes=512)
    statistics = Saved((norm.key[0], 0, 1), extra, 512, norm.packed)
    ops = list(facts.ops)
    ops[norm.packed] = replace(ops[norm.packed], outputs=(*ops[norm.packed].outputs, extra))
    (back,) = [op.index for op in ops if op.backward and norm.storage in op.inputs]
    ops[back] = replace(ops[back], inputs=(*ops[back].inputs, extra))
    place = facts.saved.index(norm) + 1
    saved = (*facts.saved[:place], statistics, *facts.saved[place:])
    points = find_points(
        StepCost(replace(facts, ops=tuple(ops), storages=(*facts.storages, kept), saved=saved))
    )
    (used,) = [op for op, key in points.unpackings.items() if key == statistics.key]
    assert points.first_unpackings[used] == norm.key
    assert points.first_unpackings.keys() == points.unpackings.keys()
