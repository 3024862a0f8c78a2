"""Boxes of overlapping tiles: each object once, whatever the tiles."""

from __future__ import annotations

import numpy as np

from outsize.tasks.detect.settle import FoundBoxes, joined, no_found, settle
from outsize.tiles.window import Tile, Window

_SCENE = Window(0, 0, 100, 200)
_LEFT = Tile(0, Window(0, 0, 100, 100), Window(0, 0, 100, 130))
_RIGHT = Tile(1, Window(0, 100, 100, 100), Window(0, 70, 100, 130))


def _found(*rows: tuple[float, ...]) -> FoundBoxes:
    table = np.array(rows, np.float64).reshape(-1, 6)
    return FoundBoxes(table[:, :4], table[:, 4].astype(np.int64), table[:, 5])


def _settled(left: FoundBoxes, right: FoundBoxes) -> list[tuple[float, ...]]:
    rows = settle(((_LEFT, left), (_RIGHT, right)), _SCENE)
    return [(*sides, score) for sides, score in zip(rows.sides.tolist(), rows.scores.tolist(), strict=True)]


def test_of_two_whole_ones_that_tile_counts_which_has_the_middle() -> None:
    left, right = _found((80, 10, 110, 40, 0, 0.91)), _found((12, 11, 41, 40, 0, 0.94))
    assert _settled(left, right) == [(80, 10, 110, 40, 0.91)]


def test_one_that_is_cut_gives_way_to_the_whole() -> None:
    left, right = _found((110, 10, 130, 40, 0, 0.99)), _found((40, 10, 80, 40, 0, 0.6))
    assert _settled(left, right) == [(110, 10, 150, 40, 0.6)]


def test_parts_of_one_that_no_tile_saw_whole_are_united() -> None:
    left, right = _found((20, 10, 130, 40, 0, 0.7)), _found((0, 10, 110, 40, 0, 0.8))
    assert _settled(left, right) == [(20, 10, 180, 40, 0.8)]


def test_neighbours_and_other_classes_are_left_alone() -> None:
    left = _found((72, 10, 98, 40, 0, 0.9), (76, 12, 99, 40, 1, 0.5))
    right = _found((25, 10, 60, 40, 0, 0.8))
    assert len(_settled(left, right)) == 3


def test_what_does_not_touch_a_core_is_another_tiles_matter() -> None:
    assert _settled(_found((105, 10, 125, 40, 0, 0.9)), no_found()) == []


def test_nothing_is_found_nowhere_and_borders_of_the_scene_cut() -> None:
    assert len(settle((), _SCENE)) == 0
    assert len(joined([])) == 0
    ((left, top, right, bottom, score),) = _settled(_found((-4, -5, 20, 30, 0, 0.9)), no_found())
    assert (left, top, right, bottom, score) == (0, 0, 20, 30, 0.9)
