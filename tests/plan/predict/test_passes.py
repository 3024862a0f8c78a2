"""What passes cost and where what they keep lies, on a graph that can be counted by hand."""

from __future__ import annotations

import pytest

from outsize.graph import INPUT, ModelGraph, Op, Setting
from outsize.plan.plan import plan_from_dict
from outsize.plan.predict.passes import (
    PassRoom,
    choose_passes,
    cores_of,
    largest_tile,
    most_kept,
    plan_passes,
    work_of,
)
from outsize.tiles.passes import PassGraph, lay_out

SIDE = 256
NUMBERS = 4 * SIDE * SIDE  # of a map
CONV: dict[str, Setting] = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}


@pytest.fixture(scope="module")
def laid() -> PassGraph:
    """A convolution times the mean of what it makes, after which it is halved twice."""
    maps, small = (1, 4, SIDE, SIDE), (1, 4, SIDE // 2, SIDE // 2)
    halve = {**CONV, "stride": (2, 2)}
    up: dict[str, Setting] = {"mode": "nearest", "scales": (2.0, 2.0), "align_corners": False}
    ops = (
        Op(0, INPUT, "", 0, (), maps),
        Op(1, "conv", "first", 0, (0,), small, halve),
        Op(2, "mean", "pool", 0, (1,), (1, 4, 1, 1), {"dim": (2, 3), "keepdim": True}),
        Op(3, "mul", "", 0, (1, 2), small),
        Op(4, "upsample", "", 0, (3,), maps, up),
    )
    return lay_out(ModelGraph(ops, (0,), (4,)))


def test_what_lies_between_passes(laid: PassGraph) -> None:
    assert most_kept(laid) == NUMBERS // 4


def test_a_tile_has_its_input_its_output_and_room_to_pad(laid: PassGraph) -> None:
    assert largest_tile(laid, 0, SIDE) == NUMBERS + 2 * NUMBERS // 4
    assert largest_tile(laid, 0, 64) == 4 * 65 * 65 + 2 * 4 * 32 * 32


def test_work_is_counted_against_the_whole_picture(laid: PassGraph) -> None:
    assert work_of(laid, (SIDE, SIDE)) == 1
    assert 1 < work_of(laid, (64, 64)) < 1.1


def test_early_passes_take_larger_cores_as_far_as_they_fit(laid: PassGraph) -> None:
    room = 4 * (largest_tile(laid, 0, 128) + 4)
    assert cores_of(laid, 32, room) == (128, 32)
    assert cores_of(laid, 128, room) == (128, 128)


def test_memory_where_it_is_enough_then_disk_then_nothing(laid: PassGraph) -> None:
    kept, tile = 4 * most_kept(laid), 4 * (4 + max(largest_tile(laid, number, 64) for number in (0, 1)))
    for room, on_disk in (
        (PassRoom(kept + tile, None), False),
        (PassRoom(kept + tile - 1, None), True),
        (PassRoom(tile, kept), False),
        (PassRoom(tile, kept - 1), True),
    ):
        found = choose_passes(laid, (64,), room)
        assert found is not None
        assert (found.core_px, found.on_disk, found.kept_bytes, found.num) == (64, on_disk, kept, 2)
    assert choose_passes(laid, (64,), PassRoom(tile - 1, None)) is None


def test_the_plan_says_what_it_does_and_comes_back_from_its_file(laid: PassGraph) -> None:
    plan = plan_passes(
        laid,
        (64,),
        PassRoom(1 << 30, None),
        scene_px=(SIDE, SIDE - 3),
        limit_bytes=1 << 30,
        lasting_bytes=0,
        stride_px=2,
    )
    assert plan is not None
    assert plan.exact
    filled, how, cost = plan.why
    assert "256 x 253 px: it is filled up with zeros to 256 x 256 px" in filled
    assert how == "exact, in 2 passes over the tiles: 1 operation of the model looks at the whole picture"
    assert cost.startswith("between passes at most 256.0 KiB of maps lie in host memory")
    assert plan_from_dict(plan.as_dict()) == plan
