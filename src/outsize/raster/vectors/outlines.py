"""Traces a whole class map: regions with their sizes, and polygons whose outlines do not depend on the strips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.raster.vectors.regions import Corners, Strip, join, load_join, scan
from outsize.raster.vectors.rings import Rings, string, uncross
from outsize.threads import Threads

ReadRows = Callable[[int, int], NDArray[Any]]  # first row, end row -> (rows, columns)


@dataclass(frozen=True, slots=True)
class Outlines:
    """Polygons by their topmost, leftmost point, each with the class, size and confidence of its region.

    Polygon i has the rings `polygon_start[i]` up to `polygon_start[i + 1]`, outside first. Ring j has the points
    `ring_start[j]` up to `ring_start[j + 1]`, of which the last repeats the first.
    """

    value: NDArray[np.int64]
    num_px: NDArray[np.int64]
    mean: NDArray[np.float64]
    area: NDArray[np.float64]  # m2 where the size of pixels is known, else pixels
    polygon_start: NDArray[np.int64]
    ring_start: NDArray[np.int64]
    row: NDArray[np.int32]
    col: NDArray[np.int32]


def trace(
    read_classes: ReadRows,
    read_confidence: ReadRows | None,
    size: tuple[int, int],
    *,
    skip: frozenset[int],
    strip_rows: int,
    num_threads: int = 1,
    integral_m2: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]] | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Outlines:
    """Trace a map of `size` (height, width), strip by strip, without the regions whose class is in `skip`."""
    strips = list(_scan_all(read_classes, read_confidence, size, skip, strip_rows, num_threads, advance))
    offsets = np.cumsum([0] + [len(strip.value) for strip in strips])
    root = _join_strips(strips, offsets)
    num_regions = int(root.max()) + 1 if len(root) else 0
    num_px = _add(root, [strip.num_px for strip in strips], num_regions)
    total = _add(root, [strip.confidence_sum for strip in strips], num_regions)
    value = np.zeros(num_regions, np.int64)
    value[root] = np.concatenate([strip.value for strip in strips])
    corners = _gather([strip.corners for strip in strips], offsets)
    del strips
    rings = string(corners, uncross(corners, root))
    del corners
    return _assemble(rings, root[rings.region], value, num_px, total / np.maximum(num_px, 1), integral_m2)


def _scan_all(
    read_classes: ReadRows,
    read_confidence: ReadRows | None,
    size: tuple[int, int],
    skip: frozenset[int],
    strip_rows: int,
    num_threads: int,
    advance: Callable[[int], object],
) -> Iterator[Strip]:
    """Read here, scan in threads; at most two strips per thread are in memory."""
    height, width = size
    load_join()
    waiting: deque[Future[Strip]] = deque()
    with Threads(num_threads, "outline", "traces polygons") as pool:
        for first in range(0, height, strip_rows):
            end = min(first + strip_rows, height)
            pixels, stand_in = _merge_skipped(read_classes(max(first - 1, 0), end), skip)
            confidence = read_confidence(first, end) if read_confidence else None
            waiting.append(pool.submit(scan, pixels, first, first > 0, end == height, confidence, stand_in))
            if len(waiting) >= 2 * num_threads:
                yield pool.result(waiting.popleft())
                advance(strip_rows * width)
        while waiting:
            yield pool.result(waiting.popleft())
            advance(strip_rows * width)


def _merge_skipped(pixels: NDArray[Any], skip: frozenset[int]) -> tuple[NDArray[Any], int]:
    """Give all skipped values one value, which also stands for the outside."""
    if not skip:
        return pixels.astype(np.int32), -1
    first, *others = sorted(skip)
    if others:
        pixels = np.where(np.isin(pixels, others), pixels.dtype.type(first), pixels)
    return pixels, first


def _join_strips(strips: list[Strip], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number regions through the map: a row above one strip and the last row of another are the same pixels."""
    upper = [strip.last + offset for strip, offset in zip(strips[:-1], offsets, strict=False)]
    lower = [strip.above + offset for strip, offset in zip(strips[1:], offsets[1:], strict=False)]
    empty = [np.zeros(0, np.int64)]
    return join(int(offsets[-1]), np.concatenate(upper + empty), np.concatenate(lower + empty))[0]


def _add(root: NDArray[np.int64], parts: list[NDArray[Any]], num_regions: int) -> NDArray[Any]:
    values = np.concatenate(parts)
    return np.bincount(root, values, num_regions).astype(values.dtype)


def _gather(parts: list[Corners], region_offsets: NDArray[np.int64]) -> Corners:
    corner_offsets = np.cumsum([0] + [len(part.row) for part in parts])
    regions, crossings = [], []
    for part, region_offset, corner_offset in zip(parts, region_offsets, corner_offsets, strict=False):
        regions.append(np.where(part.region >= 0, part.region + region_offset, -1))
        crossings.append(part.crossings + np.array([corner_offset] * 2 + [region_offset] * 2))
    return Corners(
        np.concatenate([part.row for part in parts]),
        np.concatenate([part.col for part in parts]),
        np.concatenate([part.way_in for part in parts]),
        np.concatenate([part.way_out for part in parts]),
        np.concatenate(regions),
        np.concatenate(crossings),
    )


def _assemble(
    rings: Rings,
    region: NDArray[np.int64],
    value: NDArray[np.int64],
    num_px: NDArray[np.int64],
    mean: NDArray[np.float64],
    integral_m2: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]] | None,
) -> Outlines:
    """Give each region its outside and its holes, which are walked the other way round."""
    ring_px = rings.integrate(rings.row.astype(np.int64) * rings.col)
    is_hole = ring_px < 0
    outside = np.flatnonzero(~is_hole)  # rings come by their first corner, so polygons do too
    regions = region[outside]
    polygon_of = np.full(len(value), -1, np.int64)
    polygon_of[regions] = np.arange(len(regions))
    polygon = polygon_of[region]
    order = np.lexsort((rings.first, is_hole, polygon))
    lengths = np.diff(rings.start)[order]
    ring_start = np.concatenate([[0], np.cumsum(lengths + 1)])
    within = np.arange(ring_start[-1]) - np.repeat(ring_start[:-1], lengths + 1)
    within[ring_start[1:] - 1] = 0  # close the ring
    point = np.repeat(rings.start[:-1][order], lengths + 1) + within
    if integral_m2 is None:
        area: NDArray[Any] = num_px[regions].astype(np.float64)
    else:
        area = np.bincount(polygon, rings.integrate(integral_m2(rings.row, rings.col)), len(regions))
    polygon_start = np.concatenate([[0], np.cumsum(np.bincount(polygon, minlength=len(regions)))])
    return Outlines(
        value[regions],
        num_px[regions],
        mean[regions],
        area,
        polygon_start,
        ring_start,
        rings.row[point],
        rings.col[point],
    )
