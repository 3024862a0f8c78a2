"""Shares a scene out in blocks, and keeps the shares a distance apart.

Blocks of one split grow together. Along each border between splits, both sides give up half of the gap:

    train | train | test            rows and columns of cells: borders of blocks, and half a gap on either side;
    ------+-------+-----            a cell is kept where no block of another split is nearer than half a gap
    train | train | train
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outsize.tiles.window import Window


def block_shape(height: int, width: int, block_px: int) -> tuple[int, int]:
    """Return how many blocks a scene has, down and across; what is left over joins the last one."""
    return max(1, height // block_px), max(1, width // block_px)


def kept_areas(
    height: int, width: int, block_px: int, assigned: NDArray[np.int8], gap_px: int
) -> dict[int, tuple[Window, ...]]:
    """Return for each split its areas, at least `gap_px` rows or columns from those of another split.

    `assigned` holds the number of the split of each block.
    """
    row_edges, row_block = _cells(height, assigned.shape[0], block_px, gap_px)
    col_edges, col_block = _cells(width, assigned.shape[1], block_px, gap_px)
    owner = assigned[np.ix_(row_block, col_block)]
    areas = {}
    for split in np.unique(assigned).tolist():
        # a border belongs to the split with the smaller number: half of an odd gap is not whole
        foreign = np.zeros(owner.shape, np.bool_)
        for other in np.unique(assigned).tolist():
            if other != split:
                reach_px = gap_px // 2 if split < other else gap_px - gap_px // 2
                foreign |= _near(
                    assigned == other, (row_edges, col_edges), (height, width), block_px, reach_px
                )
        areas[split] = _rectangles((owner == split) & ~foreign, row_edges, col_edges)
    return areas


def _edges(length: int, num: int, block_px: int) -> NDArray[np.int64]:
    return np.array([*range(0, num * block_px, block_px), length], np.int64)


def _cells(length: int, num: int, block_px: int, gap_px: int) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the borders of cells, and for each cell the block it lies in."""
    edges = _edges(length, num, block_px)
    halves = (gap_px // 2, gap_px - gap_px // 2)
    cuts = np.unique(
        np.concatenate([edges, *(edges + half for half in halves), *(edges - half for half in halves)])
    )
    cuts = cuts[(cuts >= 0) & (cuts <= length)]
    return cuts, np.searchsorted(edges, cuts[:-1], side="right") - 1


def _near(
    blocks: NDArray[np.bool_],
    edges: tuple[NDArray[np.int64], NDArray[np.int64]],
    size: tuple[int, int],
    block_px: int,
    reach_px: int,
) -> NDArray[np.bool_]:
    """Say which cells touch a block of `blocks` that is widened by `reach_px` to all sides."""
    rows, cols = edges
    found = np.zeros((len(rows) - 1, len(cols) - 1), np.bool_)
    row_ends, col_ends = (_edges(size[axis], blocks.shape[axis], block_px) for axis in (0, 1))
    for row, col in np.argwhere(blocks):
        top, bottom = np.searchsorted(rows, (row_ends[row] - reach_px + 1, row_ends[row + 1] + reach_px))
        left, right = np.searchsorted(cols, (col_ends[col] - reach_px + 1, col_ends[col + 1] + reach_px))
        found[max(0, top - 1) : bottom, max(0, left - 1) : right] = True
    return found


def _rectangles(
    kept: NDArray[np.bool_], rows: NDArray[np.int64], cols: NDArray[np.int64]
) -> tuple[Window, ...]:
    """Cover cells with rectangles that do not overlap: across first or down first, whichever gives the thicker."""
    across = [
        Window(int(rows[top]), int(cols[left]), int(rows[bottom] - rows[top]), int(cols[right] - cols[left]))
        for top, left, bottom, right in _runs(kept)
    ]
    down = [
        Window(int(rows[top]), int(cols[left]), int(rows[bottom] - rows[top]), int(cols[right] - cols[left]))
        for left, top, right, bottom in _runs(kept.T)
    ]
    return tuple(across if _thickness(across) >= _thickness(down) else down)


def _thickness(areas: Sequence[Window]) -> float:
    return sum(area.num_px * min(area.height, area.width) for area in areas)


def _runs(kept: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Cover cells greedily with (top, left, bottom, right): as far right as possible, then as far down."""
    left_over, found = kept.copy(), []
    for top in range(kept.shape[0]):
        left = 0
        while left < kept.shape[1]:
            if not left_over[top, left]:
                left += 1
                continue
            stops = np.flatnonzero(~left_over[top, left:])
            right = left + int(stops[0]) if len(stops) else kept.shape[1]
            full = np.asarray(left_over[top:, left:right].all(axis=1))
            stops = np.flatnonzero(~full)
            bottom = top + (int(stops[0]) if len(stops) else len(full))
            left_over[top:bottom, left:right] = False
            found.append((top, left, bottom, right))
            left = right
    return found
