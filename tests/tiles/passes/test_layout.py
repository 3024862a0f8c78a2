"""Passes of a small graph with two nested pools, and the parts of its tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outsize.errors import TraceError
from outsize.graph import INPUT, ModelGraph, Op, Setting
from outsize.tiles.passes import Role, lay_out
from outsize.tiles.passes.layout import HELD_NUMBERS
from outsize.tiles.passes.regions import Walk
from outsize.tiles.window import Window

SIZE = (50, 70)
CONV: dict[str, Setting] = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}


def graph(size: tuple[int, int] = SIZE, middle: str = "relu", samples: int = 1) -> ModelGraph:
    """Two convolutions, each multiplied with the mean of what it makes."""
    maps = (samples, 4, *size)
    pooled = {"dim": (2, 3), "keepdim": True}
    ops = (
        Op(0, INPUT, "", 0, (), maps),
        Op(1, "conv", "first", 0, (0,), maps, CONV),
        Op(2, "mean", "first", 0, (1,), (samples, 4, 1, 1), pooled),
        Op(3, "mul", "first", 0, (1, 2), maps),
        Op(4, middle, "", 0, (3,), maps),
        Op(5, "conv", "second", 0, (4,), maps, CONV),
        Op(6, "mean", "second", 0, (5,), (samples, 4, 1, 1), pooled),
        Op(7, "mul", "second", 0, (5, 6), maps),
    )
    return ModelGraph(ops, (0,), (7,))


def test_each_nested_pool_is_a_pass() -> None:
    laid = lay_out(graph())
    assert (laid.num_passes, laid.num_pools, laid.obstacles) == (3, 2, ())
    assert laid.pooled == ((2,), (6,), ())
    assert laid.kept[1:] == ((5,), ())
    # before the first pool nothing needs be kept: the input is read again, and the convolution is kept as it is no more
    assert laid.kept[0] == (1,)
    assert [laid.pass_of[index] for index in (1, 3, 5, 7)] == [0, 1, 1, 2]
    assert laid.parts[2].role is Role.POOL


def test_parts_of_all_tiles_make_up_each_map_once() -> None:
    laid = lay_out(graph())
    for number in range(laid.num_passes):
        walk = Walk(laid, number, 16)
        works = walk.works()
        assert len(works) == walk.num_tiles == 4 * 5
        for index in laid.kept[number]:
            assert sum(work.kept[index].num_px for work in works) == SIZE[0] * SIZE[1]
        for index in laid.pooled[number]:
            assert sum(work.pooled[index].num_px for work in works) == SIZE[0] * SIZE[1]


def test_a_tile_reads_as_far_as_one_pass_looks() -> None:
    walk = Walk(lay_out(graph()), 1, 16)
    work = walk.work(1, 0)
    assert work.core == Window(16, 0, 16, 16)
    assert work.regions[1] == Window(15, 0, 18, 17)  # one convolution, at the left border of the picture
    assert walk.largest(5) == (16, 16)
    assert walk.lengths(1) == (50 + 2 * 3, 70 + 2 * 4)


def test_what_does_not_add_up_waits_where_it_is_small_and_is_refused_where_it_is_large() -> None:
    small = lay_out(graph(middle="fft_fft2"))
    assert small.parts[4].role is Role.WHOLE
    assert not any("no sum over its parts" in str(each) for each in small.obstacles)
    side = int((HELD_NUMBERS // 4) ** 0.5) + 1
    obstacle, *_ = lay_out(graph((side, side), middle="fft_fft2")).obstacles
    assert "no sum over its parts" in str(obstacle)


def test_what_draws_random_numbers_is_an_obstacle() -> None:
    noisy = graph(middle="rand_like")
    ops = [replace(op, settings={"draws": True}) if op.kind == "rand_like" else op for op in noisy.ops]
    assert "random" in str(lay_out(replace(noisy, ops=tuple(ops))).obstacles[0])


def test_one_picture_is_laid_out() -> None:
    with pytest.raises(TraceError, match="found 2x4x50x70"):
        lay_out(graph(samples=2))
