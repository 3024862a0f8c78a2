"""A shortage leads to a plan that needs less, by what was predicted and by what was wanted."""

from __future__ import annotations

import pytest

from outsize.errors import PlanError
from outsize.plan.plan import Passes, Plan, Tiling
from outsize.plan.tighten import smaller, tighter
from outsize.plan.way import Way

MIB = 2**20
BEFORE = Plan("train", 4, 2000 * MIB, 1000 * MIB, exact=True, why=())


def _budget(wanted_bytes: int, available_bytes: int) -> float:
    asked: list[float] = []

    def choose(budget_bytes: float) -> Plan:
        asked.append(budget_bytes)
        return BEFORE

    tighter(choose, BEFORE, wanted_bytes=wanted_bytes, available_bytes=available_bytes)
    return asked[0]


def test_another_process_took_memory() -> None:
    assert _budget(900 * MIB, 500 * MIB) == pytest.approx(0.97 * 500 * MIB)


def test_a_prediction_that_was_too_low_is_made_up_for() -> None:
    assert _budget(2000 * MIB, 1500 * MIB) == pytest.approx(0.97 * 750 * MIB)


def test_less_than_before_in_any_case() -> None:
    assert _budget(0, 5000 * MIB) < BEFORE.peak_bytes


def test_where_nothing_is_left_the_least_that_would_do_is_told() -> None:
    ways = [
        Way("plain", 1000 * MIB, 1.0),
        Way("recompute", 600 * MIB, 1.2),
        Way("micro", 300 * MIB, 1.1, inexact="norms"),
    ]
    with pytest.raises(PlanError) as error:
        tighter(lambda _: ways, BEFORE, wanted_bytes=2000 * MIB, available_bytes=200 * MIB)
    assert "1.2 GiB for recompute" in str(error.value)  # twice what is predicted, and a little more
    assert "200.0 MiB available" in str(error.value)


def test_a_prediction_takes_fewer_tiles_and_then_smaller_ones() -> None:
    plan = Plan("predict", 3, 1, 1, True, ("first",), tiles=Tiling(80, (16, 16), (16, 16), 8))
    found = []
    while plan is not None:
        assert plan.tiles is not None
        found.append((plan.batch, plan.tiles.core_px))
        plan = smaller(plan, cuts=True)
    assert found == [(3, 80), (1, 80), (1, 40), (1, 16)]  # no smaller than its halo
    one = Plan("predict", 1, 1, 1, True, (), tiles=Tiling(80, (16, 16), (16, 16), 16))
    assert smaller(one, cuts=False) is None


def test_passes_take_smaller_cores_whatever_the_halo_says() -> None:
    passes = Passes(3, 2, 96, 2**20, 2**24, on_disk=False, work=1.5)
    plan = Plan("predict", 1, 1, 1, True, (), tiles=Tiling(96, (0, 0), (0, 0), 1), passes=passes)
    less = smaller(plan, cuts=False)
    assert less is not None
    assert less.passes is not None
    assert less.tiles is not None
    assert (less.passes.core_px, less.tiles.core_px) == (48, 48)
    assert less.passes.tile_bytes < passes.tile_bytes
    assert smaller(less, cuts=False) is None
