"""A plan survives its JSON form whole."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass, replace

import pytest

from outsize.plan.plan import (
    Compile,
    Fuse,
    Offload,
    Passes,
    Plan,
    PlannedSwap,
    Recompute,
    Rejected,
    Spatial,
    Swap,
    Tiling,
    plan_from_dict,
)
from outsize.tiles.grid import cover
from outsize.tiles.halo import Reach

TILING = Tiling(256, (32, 48), (16, 64), 16, pads=False)


FIRST, SECOND = ("encoder.0", 0, 1), ("head", 1, 0)
NOT_YET = {"pipeline", "replicate"}  # settings that have their place and no code
EVERYTHING = Plan(
    purpose="predict",
    batch=3,
    limit_bytes=2**34,
    peak_bytes=2**33,
    exact=False,
    why=("because", "and because"),
    rejected=(Rejected("core 2048 px", "needs 9 GiB"),),
    tiles=TILING,
    micro_batches=2,
    recompute=Recompute((FIRST, SECOND), ("trunk",), costly=(("stem", 1),), waits=(2, 0)),
    swap=Swap((PlannedSwap(FIRST, 2**20, SECOND, FIRST, late=True),), 2**20 + 512, ahead_bytes=1024),
    compile=Compile(("a.b", "c"), 0.5),
    fuse=Fuse(("a",), ("b",), ("c",), ("d",), ("e",), ("f",), (("d", "g"),), ("h",)),
    offload=Offload(("encoder", "decoder"), host_bytes=2**30, device_bytes=2**20),
    graph=True,
    paged=True,
    passes=Passes(3, 2, 256, 2**20, 2**24, on_disk=True, work=1.5, stride_px=16),
    spatial=Spatial((2, 3), (640, 512), 16, (32, 48), (16, 64)),
    step_s=0.25,
)


def _as_by_default(value: object, name: str = "") -> list[str]:
    """Name the fields of a value, and of all in it, that are what they would be if nobody had set them."""
    if isinstance(value, tuple):
        return [each for item in value for each in _as_by_default(item, name)]
    if not is_dataclass(value):
        return []
    found = []
    for field in fields(value):
        held, path = getattr(value, field.name), f"{name}.{field.name}".lstrip(".")
        found += [path] if field.default is not MISSING and held == field.default else []
        found += _as_by_default(held, path)
    return found


def test_a_plan_with_every_field_set_survives_its_json_form() -> None:
    assert set(_as_by_default(EVERYTHING)) == NOT_YET  # a field that is new is to be set here, too
    back = plan_from_dict(json.loads(json.dumps(EVERYTHING.as_dict())))
    for field in fields(Plan):
        assert getattr(back, field.name) == getattr(EVERYTHING, field.name), field.name


@pytest.mark.parametrize("strategy", ["tiles", "recompute", "swap", "compile", "fuse", "offload"])
def test_what_is_not_used_stays_so(strategy: str) -> None:
    plan = replace(EVERYTHING, **{strategy: None})
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))) == plan


def test_json_round_trip_of_moves_without_times() -> None:
    moved = (PlannedSwap(FIRST, 2**20, SECOND, None), PlannedSwap(SECOND, 512, None, FIRST))
    plan = Plan("train", 4, 2, 1, True, (), swap=Swap(moved, 2**20 + 512))
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


def test_what_waits_and_what_stays_on_the_host_add_up() -> None:
    assert replace(EVERYTHING, swap=Swap((), 600), offload=Offload((), 500, 9)).hosted_bytes == 1100
    assert EVERYTHING.plain().hosted_bytes == 0


def test_a_tiling_gives_the_grid_its_halo_by_axis() -> None:
    halo = TILING.halo
    assert (halo.rows, halo.cols, halo.stride_px) == (Reach(32, 16), Reach(48, 64), 16)
    read = cover(2000, 2000, TILING.core_px, halo)[20].read
    assert (read.height, read.width) == (32 + 256 + 16, 48 + 256 + 64)


def test_a_plan_of_an_older_run_is_read() -> None:
    tree = json.loads(json.dumps(EVERYTHING.as_dict()))
    tree["recompute"]["dear"] = tree["recompute"].pop("costly")
    assert plan_from_dict(tree) == EVERYTHING
