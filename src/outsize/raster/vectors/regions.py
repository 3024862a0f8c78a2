"""Finds, in a strip of a class map, the runs, regions and corners that polygons are made of.

Work per pixel is a handful of comparisons; all else is done per run or per corner. A run is a row's stretch of
one class; runs that touch from row to row make regions (4-connected). A corner is a point where the border of a
region turns. It is walked with the region on the right:

         in            TL | TR        Of the four pixels around a point, one that differs from both neighbours has
     ---->+            ---+---        a convex corner there; three that agree have a concave one around the fourth.
          | out        BL | BR
          v                           Straight borders give no corners, so strips leave no trace in the outline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EAST, SOUTH, WEST, NORTH = 0, 1, 2, 3

# Kinds of corners: (row, column of a pixel of the region, seen from the point), way in, way out.
_TL, _TR, _BL, _BR, _NOT_TL, _NOT_TR, _NOT_BL, _NOT_BR = range(8)
_PIXEL_ROW = np.array([-1, -1, 0, 0, 0, 0, -1, -1], np.int64)
_PIXEL_COL = np.array([-1, 0, -1, 0, 0, -1, 0, -1], np.int64)
_WAY_IN = np.array([SOUTH, WEST, EAST, NORTH, EAST, SOUTH, NORTH, WEST], np.int8)
_WAY_OUT = np.array([WEST, NORTH, SOUTH, EAST, NORTH, EAST, WEST, SOUTH], np.int8)

# Borders that leave a point: 1 up, 2 down, 4 left, 8 right. For each set of borders, the corners there.
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_CORNERS = {
    _UP | _LEFT: (_TL, _NOT_TL),
    _UP | _RIGHT: (_TR, _NOT_TR),
    _DOWN | _LEFT: (_BL, _NOT_BL),
    _DOWN | _RIGHT: (_BR, _NOT_BR),
    _UP | _LEFT | _RIGHT: (_TL, _TR),
    _DOWN | _LEFT | _RIGHT: (_BL, _BR),
    _UP | _DOWN | _LEFT: (_TL, _BL),
    _UP | _DOWN | _RIGHT: (_TR, _BR),
    15: (_TL, _TR, _BL, _BR),
}
_NUM_CORNERS = np.array([len(_CORNERS.get(code, ())) for code in range(16)], np.int64)
_KINDS = np.array([[*_CORNERS.get(code, ()), 0, 0, 0, 0][:4] for code in range(16)], np.int8)


@dataclass(frozen=True, slots=True)
class Corners:
    """Points where borders turn, row by row; `region` is -1 where a ring's other corners tell it."""

    row: NDArray[np.int32]
    col: NDArray[np.int32]
    way_in: NDArray[np.int8]
    way_out: NDArray[np.int8]
    region: NDArray[np.int64]
    crossings: NDArray[np.int64]  # (n, 4): two corners that face each other at a point, and their regions


@dataclass(frozen=True, slots=True)
class Strip:
    """What one strip of rows adds to the map; regions count from 0 within the strip."""

    value: NDArray[np.int64]  # class of each region
    num_px: NDArray[np.int64]
    confidence_sum: NDArray[np.float64]
    above: NDArray[np.int64]  # regions of the runs in the row above the strip, and
    last: NDArray[np.int64]  # in the strip's last row: where strips are joined
    corners: Corners


def scan(
    pixels: NDArray[Any],
    first_row: int,
    has_above: bool,
    is_last: bool,
    confidence: NDArray[Any] | None,
    skip: int,
) -> Strip:
    """Scan rows of classes, the first of which belongs to the strip above when `has_above`.

    `skip` is a value whose regions need no outline: it also stands for everything outside the map.
    """
    rows, width = pixels.shape
    starts = _run_starts(pixels)
    flat = pixels.reshape(-1)
    region_of_run, num_regions = _join_runs(pixels, starts)
    lengths = np.diff(starts, append=rows * width)
    own = int(np.searchsorted(starts, width)) if has_above else 0
    num_px = np.bincount(region_of_run[own:], lengths[own:], num_regions).astype(np.int64)
    value = np.zeros(num_regions, np.int64)
    value[region_of_run] = flat[starts]
    sums: NDArray[Any] = np.zeros(num_regions)
    if confidence is not None:
        sums = np.bincount(region_of_run[own:], _sums(confidence, starts[own:] - starts[own]), num_regions)
    last = int(np.searchsorted(starts, (rows - 1) * width))
    corners = _corners(pixels, first_row, has_above, is_last, skip, (starts, region_of_run))
    return Strip(value, num_px, sums, region_of_run[:own], region_of_run[last:], corners)


def _run_starts(pixels: NDArray[Any]) -> NDArray[np.int64]:
    is_start = np.empty(pixels.shape, np.bool_)
    is_start[:, 0] = True
    np.not_equal(pixels[:, 1:], pixels[:, :-1], out=is_start[:, 1:])
    return np.flatnonzero(is_start)


def _join_runs(pixels: NDArray[Any], starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Number the regions that runs belong to. Two runs that overlap do so where one of them starts."""
    width, flat = pixels.shape[1], pixels.reshape(-1)
    num_runs = len(starts)
    lower = np.searchsorted(starts, width) + np.flatnonzero(
        flat[starts[starts >= width]] == flat[starts[starts >= width] - width]
    )
    num_upper = int(np.searchsorted(starts, flat.size - width))
    upper = np.flatnonzero(flat[starts[:num_upper]] == flat[starts[:num_upper] + width])
    over_lower = np.searchsorted(starts, starts[lower] - width, side="right") - 1
    under_upper = np.searchsorted(starts, starts[upper] + width, side="right") - 1
    return join(num_runs, np.concatenate([lower, upper]), np.concatenate([over_lower, under_upper]))


def load_join() -> None:
    """Load what `join` needs, before threads do: an import without memory can end or block a thread for good."""
    import scipy.sparse.csgraph  # noqa: F401


def join(num: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Give `num` things that are linked in pairs the numbers of the groups they form."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(num, num))
    num_groups, group = connected_components(links, directed=False)
    return group.astype(np.int64), int(num_groups)


def _sums(confidence: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    if confidence.dtype.kind == "f":
        return np.add.reduceat(confidence.reshape(-1), starts, dtype=np.float64)
    total = np.cumsum(confidence.reshape(-1), dtype=np.int64)
    before = np.where(starts > 0, total[starts - 1], 0)
    return np.diff(before, append=total[-1]).astype(np.float64)


def _corners(
    pixels: NDArray[Any],
    first_row: int,
    has_above: bool,
    is_last: bool,
    skip: int,
    runs: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Corners:
    rows, width = pixels.shape
    framed = np.full((rows + (not has_above) + is_last, width + 2), skip, pixels.dtype)
    framed[(not has_above) : (not has_above) + rows, 1:-1] = pixels
    beside = framed[:, 1:] != framed[:, :-1]  # border between left and right pixel: (pixel rows, points)
    below = framed[1:] != framed[:-1]  # border between upper and lower pixel: (point rows, pixel columns)
    turns = (beside[:-1] | beside[1:]) & (below[:, :-1] | below[:, 1:])
    point = np.flatnonzero(turns)
    row, col = np.divmod(point, width + 1)
    code = beside[row, col] * _UP + beside[row + 1, col] * _DOWN + below[row, col] * _LEFT
    code += below[row, col + 1] * _RIGHT
    counts = _NUM_CORNERS[code]
    slot = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    kind = _KINDS[np.repeat(code, counts), slot]
    row, col, code = np.repeat(row, counts), np.repeat(col, counts), np.repeat(code, counts)
    value = framed[row + 1 + _PIXEL_ROW[kind], col + 1 + _PIXEL_COL[kind]]
    keep = np.flatnonzero(value != skip)
    row, col, code, kind, value = row[keep], col[keep], code[keep], kind[keep], value[keep]

    def region_at(which: NDArray[np.int64]) -> NDArray[np.int64]:
        pixel_row = (
            row[which] + _PIXEL_ROW[kind[which]] + has_above
        )  # of `pixels`; point row 0 is its top edge
        flat = pixel_row * width + col[which] + _PIXEL_COL[kind[which]]
        found: NDArray[np.int64] = runs[1][np.searchsorted(runs[0], flat, side="right") - 1]
        return found

    # Every ring has a topmost, leftmost point: a corner of kind BR on the outside, around a hole NOT_BR or, where
    # holes touch, a crossing.
    crossings = _crossings(row * (width + 1) + col, code, kind, value)
    telling = np.concatenate([np.flatnonzero((kind == _BR) | (kind == _NOT_BR)), crossings.reshape(-1)])
    region = np.full(len(row), -1, np.int64)
    region[telling] = region_at(telling)
    known = np.concatenate([crossings, region[crossings]], axis=1)
    return Corners(
        (row + first_row).astype(np.int32),
        col.astype(np.int32),
        _WAY_IN[kind],
        _WAY_OUT[kind],
        region,
        known,
    )


def _crossings(
    point: NDArray[np.int64], code: NDArray[np.int64], kind: NDArray[np.int8], value: NDArray[Any]
) -> NDArray[np.int64]:
    """Find pairs of corners of one class that face each other across a point where four borders meet."""
    pairs = []
    for one, other, apart in ((_TL, _BR, 3), (_TR, _BL, 1)):
        first = np.flatnonzero((code == 15) & (kind == one))
        for step in range(1, apart + 1):  # corners of skipped regions are gone: the partner may be nearer
            second = np.minimum(first + step, len(point) - 1)
            meets = (
                (point[second] == point[first]) & (kind[second] == other) & (value[second] == value[first])
            )
            pairs.append(np.column_stack([first[meets], second[meets]]))
    return np.concatenate(pairs).astype(np.int64)
