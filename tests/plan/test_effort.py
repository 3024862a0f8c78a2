"""What is tried before a training: sizes within a memory limit and a time, what is not worth it; by a fake clock."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from outsize.plan.effort import (
    BUDGET_S,
    START_S,
    Budget,
    Effort,
    TrialStep,
    cap_bytes,
    samples,
    sizes,
    trial_s,
    why_no_trial,
    why_profiled_so,
)
from outsize.plan.machines import CONTEXT_BYTES
from outsize.plan.times import Learnt
from outsize.units import Size, num_px_of

GIB, MIB = 2**30, 2**20


class Clock:
    """Time that goes by only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _looker(bytes_per_px: int, s_per_px: float) -> Callable[[int, Size], TrialStep | None]:
    def look(batch: int, side_px: Size) -> TrialStep | None:
        num_px = batch * num_px_of(side_px)
        return TrialStep(batch, side_px, bytes_per_px * num_px, s_per_px * num_px)

    return look


def test_sizes_fall_by_halves() -> None:
    assert list(sizes(5, 256)) == [(5, 256), (3, 256), (2, 256), (1, 256), (1, 128), (1, 64)]
    assert list(sizes(1, 60)) == [(1, 60)]


def test_half_a_minute_is_what_all_of_it_may_take() -> None:
    assert BUDGET_S < 30
    clock = Clock()
    budget = Budget(20.0, clock)
    clock.now_s += 15
    assert budget.left_s == 5.0
    clock.now_s += 15
    assert budget.left_s == 0.0


@pytest.mark.parametrize("limit_bytes", [512 * MIB, GIB, 4 * GIB, 139 * GIB])
def test_a_process_with_its_context_stays_within_the_limit(limit_bytes: int) -> None:
    cap = cap_bytes(limit_bytes)
    assert limit_bytes // 2 <= cap < limit_bytes
    assert limit_bytes < 2 * CONTEXT_BYTES or cap + CONTEXT_BYTES <= limit_bytes


def test_what_has_no_room_is_not_run() -> None:
    # 8 samples of 512 px take 8 GiB
    look = _looker(4096, 1e-9)
    found = samples(look, 8, 512, room_bytes=3 * GIB, time_s=lambda: 20.0)
    assert [(each.batch, each.side_px) for each in found] == [(2, 512), (1, 512), (1, 256), (1, 128), (1, 64)]
    assert not list(samples(look, 8, 512, room_bytes=4 * MIB, time_s=lambda: 20.0))


def test_a_model_that_does_not_run_on_a_size_is_not_run_on_it() -> None:
    look = _looker(1, 1e-9)
    odd = samples(
        lambda batch, side_px: None if batch == 8 else look(batch, side_px),
        8,
        256,
        room_bytes=math.inf,
        time_s=lambda: 20.0,
    )
    assert next(odd).batch == 4


def test_what_takes_too_long_is_not_run_but_for_the_smallest() -> None:
    look = _looker(1, 4.0 / (8 * 512 * 512))  # 4 s for all
    found = samples(look, 8, 512, room_bytes=math.inf, time_s=lambda: 20.0)
    assert next(found).batch == 2  # 1 s: 12 steps
    found = samples(look, 8, 512, room_bytes=math.inf, time_s=lambda: 0.0)
    assert [(each.batch, each.side_px) for each in found] == [(1, 64)]


def test_time_that_goes_by_counts_for_the_next_one() -> None:
    clock = Clock()
    budget = Budget(20.0, clock)
    look = _looker(1, 4.0 / (8 * 512 * 512))
    found = samples(look, 8, 512, room_bytes=math.inf, time_s=lambda: budget.left_s)
    assert next(found).batch == 2
    clock.now_s += 12  # and there was no room for it after all
    assert next(found).side_px == 128


def test_a_profile_of_long_steps_takes_few_of_them() -> None:
    short, long = (TrialStep(1, 64, 1, step_s) for step_s in (1e-3, 2.0))
    assert short.profile_s == pytest.approx(START_S + 24e-3)
    assert long.profile_s == pytest.approx(START_S + 12 * 2.0)


_LEARNT = Learnt({}, 1e-5, 0.9, 2, 512)


def test_a_plan_says_what_its_times_are_those_of() -> None:
    why = [
        why_profiled_so(learnt, 8, 512, limit_bytes=4 * GIB, peak_bytes=peak_bytes)
        for learnt, peak_bytes in ((_LEARNT, 8 * GIB), (_LEARNT, 2 * GIB), (None, 8 * GIB), (None, None))
    ]
    assert why == [
        "times are drawn from a real step of 2 x 512 px within the limit of 4.0 GiB, not of 8 x 512 px, "
        "which needs 8.0 GiB as it is",
        "times are drawn from a real step of 2 x 512 px for want of time, not of 8 x 512 px, "
        "which needs 2.0 GiB as it is",
        "no real step was run within the limit of 4.0 GiB (8 x 512 px, which needs 8.0 GiB as it is): "
        "times are those of the machine's rates",
        "no real step was run within the limit of 4.0 GiB (8 x 512 px): times are those of the machine's rates",
    ]
    assert why_profiled_so(_LEARNT, 2, 512, limit_bytes=GIB, peak_bytes=1) is None


def test_a_training_that_is_shorter_than_a_trial_does_without() -> None:
    assert trial_s(0.1) == pytest.approx(START_S + 3.9)
    for num_steps, tried in ((90, False), (110, True)):
        why = why_no_trial(Effort(Budget(20.0, Clock()), num_steps), 0.1)
        assert (why is None) == tried
        assert tried or why == "90 steps take 9.0 s, and to try it about 9.9 s"
    # ended by the job's minutes
    assert why_no_trial(Effort(Budget(20.0, Clock()), 10**6, max_s=5.0), 0.1)
    assert why_no_trial(Effort(Budget(20.0, Clock())), 0.1) is None  # of a length that is not known


def test_a_trial_that_no_time_is_left_for_waits_for_the_next_start() -> None:
    clock = Clock()
    effort = Effort(Budget(20.0, clock), 10**6)
    assert why_no_trial(effort, 0.1) is None
    clock.now_s += 12
    assert why_no_trial(effort, 0.1) == (
        "to try it takes about 9.9 s, and 8.0 s of 20.0 s are left: the next start tries it"
    )
