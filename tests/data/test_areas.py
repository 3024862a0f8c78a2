"""Blocks of different splits keep their distance, and nothing else is lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.data.areas import block_shape, kept_areas
from outsize.tiles.window import Window


def painted(areas: tuple[Window, ...], height: int, width: int) -> np.ndarray:
    count = np.zeros((height, width), np.int32)
    for area in areas:
        assert area.intersect(Window(0, 0, height, width)) == area
        count[area.slices] += 1
    return count


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(0, 7),
    st.integers(0, 23),
    st.integers(0, 99),
)
def test_splits_are_apart_and_disjoint_and_nothing_more_is_lost(
    rows: int, cols: int, spare: int, odd: int, gap_px: int, seed: int
) -> None:
    block_px, height, width = 32, rows * 32 + spare, cols * 32 + odd
    assert block_shape(height, width, block_px) == (rows, cols)
    assigned = np.random.default_rng(seed).integers(0, 3, (rows, cols)).astype(np.int8)
    areas = kept_areas(height, width, block_px, assigned, gap_px)
    counts = {split: painted(held, height, width) for split, held in areas.items()}
    assert sum(counts.values()).max() <= 1
    owner = assigned[
        np.ix_(*(np.minimum(np.arange(n) // 32, k - 1) for n, k in ((height, rows), (width, cols))))
    ]
    for split, count in counts.items():
        assert (owner[count > 0] == split).all()
        # what is far from every other split is all there
        far = np.ones_like(owner, np.bool_)
        for row, col in np.argwhere(owner != split):
            reach = (gap_px + 1) // 2
            far[max(0, row - reach) : row + reach + 1, max(0, col - reach) : col + reach + 1] = False
        assert (count[far & (owner == split)] == 1).all()
    for one, other in itertools.combinations(areas, 2):
        for a, b in itertools.product(areas[one], areas[other]):
            row_gap = max(a.row, b.row) - min(a.row_end, b.row_end)
            col_gap = max(a.col, b.col) - min(a.col_end, b.col_end)
            assert max(row_gap, col_gap) >= gap_px


def test_one_split_has_everything_in_one_area() -> None:
    areas = kept_areas(100, 70, 32, np.zeros((3, 2), np.int8), 20)
    assert areas == {0: (Window(0, 0, 100, 70),)}


@pytest.mark.parametrize("gap_px", [0, 10, 11])
def test_neighbours_give_up_half_each(gap_px: int) -> None:
    areas = kept_areas(64, 128, 64, np.int8([[0, 1]]), gap_px)
    assert areas[0] == (Window(0, 0, 64, 64 - gap_px // 2),)
    first = 64 + gap_px - gap_px // 2
    assert areas[1] == (Window(0, first, 64, 128 - first),)


def test_blocks_smaller_than_the_gap_vanish() -> None:
    assigned = np.zeros((3, 3), np.int8)
    assigned[1, 1] = 2
    areas = kept_areas(96, 96, 32, assigned, 40)
    assert areas[2] == ()
    assert areas[0]
