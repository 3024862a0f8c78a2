"""A plan survives its JSON form whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from outsize.plan.plan import Compile, Moved, Plan, Recompute, Rejected, Swap, Tiling, plan_from_dict
from outsize.tiles.grid import cover
from outsize.tiles.halo import Reach

TILING = Tiling(256, (32, 48), (16, 64), 16)


@pytest.mark.parametrize("tiles", [TILING, None])
def test_json_round_trip(tiles: Tiling | None) -> None:
    plan = Plan(
        purpose="predict",
        batch=3,
        limit_bytes=2**34,
        peak_bytes=2**33,
        exact=False,
        why=("because", "and because"),
        rejected=(Rejected("core 2048 px", "needs 9 GiB"),),
        tiles=tiles,
        micro_batches=2,
    )
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))) == plan


def test_json_round_trip_of_keys() -> None:
    first, second = ("encoder.0", 0, 1), ("head", 1, 0)
    swap = Swap((Moved(first, 2**20, second, None), Moved(second, 512, None, first)), 2**20 + 512)
    plan = Plan("train", 4, 2, 1, True, (), recompute=Recompute((first, second), ("trunk",)), swap=swap)
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))) == plan


def test_a_swap_of_an_earlier_version_is_read() -> None:
    plan = Plan("train", 4, 2, 1, True, (), swap=Swap((), 512, ahead_bytes=1024))
    form = json.loads(json.dumps(plan.as_dict()))
    assert plan_from_dict(form) == plan
    del form["swap"]["ahead_bytes"]
    assert plan_from_dict(form).swap == Swap((), 512)


def test_without_strategies_it_is_the_plain_step() -> None:
    some = Plan("train", 4, 2, 1, True, ("why",), tiles=TILING, micro_batches=2, step_s=1.0)
    more = replace(some, recompute=Recompute(), swap=Swap((), 512), compile=Compile(()))
    assert more.plain() == Plan("train", 4, 2, 1, True, ("why",), step_s=1.0)


def test_every_strategy_has_its_place_in_the_form() -> None:
    plan = Plan(purpose="train", batch=1, limit_bytes=1, peak_bytes=1, exact=True, why=())
    form = plan.as_dict()
    strategies = {"tiles", "micro_batches", "recompute", "swap", "pipeline", "replicate", "compile"}
    assert {name for name in strategies if form[name] is None} == strategies
    assert {"why", "rejected", "exact"} <= form.keys()


def test_a_tiling_gives_the_grid_its_halo_by_axis() -> None:
    halo = TILING.halo
    assert (halo.rows, halo.cols, halo.stride_px) == (Reach(32, 16), Reach(48, 64), 16)
    read = cover(2000, 2000, TILING.core_px, halo)[20].read
    assert (read.height, read.width) == (32 + 256 + 16, 48 + 256 + 64)
