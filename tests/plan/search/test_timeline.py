"""When moved storages leave and return, on steps whose times can be added up by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.lines import carry_out, line, op_s, schedule

from outsize.plan.cost import Changed, StepCost
from outsize.plan.machines import find_machine
from outsize.plan.plan import PlannedSwap
from outsize.plan.search.timeline import Link, Timeline
from outsize.plan.step import StepFacts

EVEN = line([10] * 5, [10] * 4, [10] * 4)  # 50 s forward, 40 s backward, storages 0 to 3 of 10 bytes each
KEYS = [(f"layer{index}", 0, 0) for index in range(5)]  # KEYS[i + 1] saves storage i


def _link(out: float, back: float) -> Link:
    return Link(out, back, start_s=0.0)


def _played(facts: StepFacts, storages: set[int], link: Link, budget_bytes: float) -> Timeline:
    found = schedule(StepCost(facts), storages, op_s, link, budget_bytes)
    assert found is not None
    swap, timeline = found
    seen = carry_out(facts, swap, link)
    assert seen.missing == []
    assert seen.live_bytes == timeline.live_bytes.tolist()
    assert seen.stall_s == pytest.approx(timeline.stall_s)
    assert StepCost(facts).live_bytes(Changed(twice=timeline.twice())) == timeline.live_bytes.tolist()
    return timeline


def test_nothing_moved_is_the_plain_step() -> None:
    timeline = _played(EVEN, set(), _link(1, 1), 40)
    assert timeline.stall_s == 0
    assert timeline.peak_bytes == StepCost(EVEN).peak_bytes() == 40


def test_a_copy_that_hides_costs_nothing() -> None:
    found = schedule(StepCost(EVEN), {0}, op_s, _link(1, 1), 40)
    assert found is not None
    swap, timeline = found
    # saved at 10 s, on the host at 20 s, when storage 1 is saved, and given back when the next one is: there is room;
    # fetched with the first unpacking of all
    assert swap.moved == (PlannedSwap(KEYS[1], 10, release=KEYS[3], fetch=KEYS[4]),)
    assert swap.pinned_bytes == 10
    assert timeline.stall_s == 0
    assert _played(EVEN, {0}, _link(1, 1), 40).twice() == {0: (3, 5)}


def test_memory_is_given_back_when_it_is_needed_or_a_while_after_the_copy() -> None:
    timeline = _played(EVEN, {0}, _link(0.5, 1), 30)  # from 10 s to 30 s, when storage 3 is made
    assert timeline.twice()[0][0] == 3
    assert timeline.stall_s == 0
    timeline = _played(EVEN, {0}, _link(0.4, 1), 30)  # to 35 s
    assert timeline.twice()[0][0] == 3
    assert timeline.stall_s == pytest.approx(5)
    assert _played(EVEN, {0}, _link(0.5, 1), 40).twice()[0][0] == 5


@pytest.mark.parametrize(("budget_bytes", "slower_s"), [(40, 0.0), (30, 4.0)])
def test_a_link_that_is_slower_than_planned_is_waited_for_only_where_memory_is_short(
    budget_bytes: int, slower_s: float
) -> None:
    found = schedule(StepCost(EVEN), {0}, op_s, _link(0.5, 1), budget_bytes)
    assert found is not None
    swap, timeline = found
    assert timeline.stall_s == 0
    assert carry_out(EVEN, swap, _link(10 / 24, 1)).stall_s == pytest.approx(slower_s)


def test_a_copy_out_goes_on_in_backward_as_far_as_memory_allows() -> None:
    timeline = _played(EVEN, {0}, _link(0.2, 10), 40)  # from 10 s to 60 s, and forward ends at 50 s
    assert timeline.twice()[0] == (6, 6)
    assert timeline.stall_s == 0
    found = schedule(StepCost(EVEN), {0}, op_s, _link(0.2, 10), 40)
    assert found is not None
    # given back when storage 2 is unpacked
    assert found[0].moved == (PlannedSwap(KEYS[1], 10, release=KEYS[3], fetch=KEYS[3], late=True),)
    timeline = _played(EVEN, {0}, _link(0.2, 10), 39)  # asked for its memory at 30 s
    assert timeline.twice()[0][0] == 3
    assert timeline.stall_s == pytest.approx(30)


def test_what_would_leave_only_when_it_is_needed_stays() -> None:
    timeline = _played(EVEN, {0, 1}, _link(0.1, 10), 40)  # 0 from 10 s to 110 s, and needed at 80 s
    assert timeline.twice() == {}
    assert timeline.stall_s == 0


def test_what_has_left_comes_back_before_what_has_not() -> None:
    facts = line([10] * 5, [10, 30, 5, 10], [10, 10, 10, 10])
    # out: 0 from 10 s to 30 s, 1 from 30 s to a little after 50 s, when backward has begun; 60 s is the next chance
    # in: 0, needed at 95 s, from 50 s to 70 s, and 1, needed at 90 s, then; the other way round 0 would be late by 5 s
    timeline = _played(facts, {0, 1}, Link(0.4999, 0.5, 0.0), 40)
    assert timeline.twice() == {0: (5, 5), 1: (6, 6)}
    assert timeline.stall_s == 0


def test_a_copy_back_hides_in_part() -> None:
    timeline = _played(EVEN, {0}, _link(1, 0.25), 40)  # asked for at 50 s, there at 90 s, needed at 80 s
    assert timeline.stall_s == pytest.approx(10)


def test_a_tight_budget_is_waited_for_exactly() -> None:
    timeline = _played(EVEN, {0, 1}, _link(0.5, 0.5), 20)
    # out: storage 0 is asked for its memory at 20 s and has left at 30 s; storage 1 at 40 s, and 50 s
    # in: storage 1 may come when 3 is done, at 80 s, is there at 100 s, needed at 90 s;
    #     storage 0 may come when 2 is done, at 100 s, is there at 120 s, needed at 110 s
    assert timeline.twice() == {0: (2, 7), 1: (3, 6)}
    assert timeline.stall_s == pytest.approx(40)
    assert timeline.peak_bytes == 20


@pytest.mark.parametrize(("budget_bytes", "back"), [(36, 5), (35, 6), (30, 6), (29, 7), (26, 7)])
def test_what_comes_back_begins_as_early_as_memory_allows(budget_bytes: int, back: int) -> None:
    facts = line([10] * 5, [10] * 4, [10, 14, 6, 6])
    # held from operation 5 on besides storage 0: 26, 20, 14, 0
    assert _played(facts, {0}, _link(10, 10), budget_bytes).twice()[0][1] == back


def test_each_direction_is_one_queue() -> None:
    facts = line([1, 1, 1, 20, 1], [1, 1, 1, 1], [10, 10, 1, 1])
    timeline = _played(facts, {0, 1}, _link(1, 1), 100)
    # out: 0 from 1 s to 11 s, 1 from 11 s to 21 s; the next packing is at 23 s, forward ends at 24 s
    assert timeline.twice()[0][0] == 4
    assert timeline.twice()[1][0] == 5
    # in, from 24 s on: 1 until 34 s, needed at 26 s; 0 until 44 s, needed a second after 1
    assert timeline.stall_s == pytest.approx(8 + 9)


def test_what_cannot_fit_has_no_timeline() -> None:
    assert schedule(StepCost(EVEN), {0, 1}, op_s, _link(1, 1), 19) is None
    assert schedule(StepCost(EVEN), set(), op_s, _link(1, 1), 39) is None


def test_a_machine_has_a_link_where_its_speed_is_known() -> None:
    link = Link.of(find_machine("h200").rates)
    assert link is not None
    assert link.out_s(55_600_000_000) == pytest.approx(1 / 0.9, abs=1e-3)
    rates = find_machine("dgx-station").rates
    alone, crowded = Link.of(rates), Link.of(rates, num_gpus=4)
    assert alone is not None
    assert crowded is not None
    assert (
        crowded.to_host_bytes_per_s
        == crowded.to_device_bytes_per_s
        == 0.9 * 6.94e9
        < alone.to_device_bytes_per_s
    )


@st.composite
def _cases(draw: st.DrawFn) -> tuple[StepFacts, set[int], Link, int]:
    num = draw(st.integers(1, 7))
    numbers = st.integers(1, 20)
    forward, backward, sizes = (
        draw(st.lists(numbers, min_size=length, max_size=length)) for length in (num + 1, num, num)
    )
    facts = line(forward, backward, sizes)
    moved = draw(st.sets(st.integers(0, num - 1)))
    link = Link(draw(st.integers(1, 40)) / 8, draw(st.integers(1, 40)) / 8, draw(st.sampled_from([0.0, 0.5])))
    return facts, moved, link, draw(st.integers(1, sum(sizes)))


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_a_timeline_is_what_hooks_that_know_the_keys_alone_will_see(
    case: tuple[StepFacts, set[int], Link, int],
) -> None:
    facts, moved, link, budget_bytes = case
    cost = StepCost(facts)
    found = schedule(cost, moved, op_s, link, budget_bytes)
    if found is None:
        return
    timeline = _played(facts, moved, link, budget_bytes)
    assert timeline.peak_bytes <= budget_bytes
    for storage, (gone, back) in timeline.twice().items():
        assert cost.let_go[storage] <= gone <= back <= cost.first_backward[storage]
        assert cost.turn <= back
