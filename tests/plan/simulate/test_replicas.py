"""Where the time of a step on many GPUs goes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.plan.simulate.replicas import scaled, slowest_of, split_input


def test_parts_add_up_and_shares_to_one() -> None:
    step = scaled(1.0, 16, spread=0.01, gradients_s=0.1, input_s=1.5)
    assert step.step_s == pytest.approx(1.5)
    assert sum(step.shares().values()) == pytest.approx(1)
    assert step.efficiency == pytest.approx(1 / 1.5)
    assert scaled(1.0, 1, spread=0.01).step_s == 1.0


@pytest.mark.parametrize("num", [2, 8, 100])
def test_the_slowest_is_as_late_as_drawn_ones_are(num: int) -> None:
    chance = random.Random(7)
    drawn = [max(chance.gauss(0, 1) for _ in range(num)) for _ in range(4000)]
    assert slowest_of(num) == pytest.approx(sum(drawn) / len(drawn), abs=0.05)


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(0, 0.1))
def test_more_ranks_never_make_a_step_faster(one: int, other: int, spread: float) -> None:
    few, many = sorted((one, other))
    assert scaled(1.0, few, spread=spread).step_s <= scaled(1.0, many, spread=spread).step_s


def test_two_points_tell_series_from_parallel() -> None:
    series_s, parallel_s = split_input((1, 5.0), (4, 2.0))
    assert (series_s, parallel_s) == (pytest.approx(1.0), pytest.approx(4.0))
