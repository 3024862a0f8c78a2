"""Outlines and areas of objects that are masks in windows of their own: on the ground, and in square metres."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from outsize.raster.georef import GeoRef
    from outsize.raster.pixel_area import PixelArea
    from outsize.tiles.window import Window

_AT_ONCE_PX = 1 << 22  # pixels of masks that are outlined together


class Masked(Protocol):
    """An object: where it is, and which pixels there are its own."""

    @property
    def class_id(self) -> int:
        """Number of its class, from 0."""

    @property
    def window(self) -> Window:
        """Where it is in its scene."""

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Its pixels in the window."""

    @property
    def score(self) -> float:
        """How sure its finder was."""


def outline(objects: Sequence[Masked], georef: GeoRef) -> NDArray[Any]:
    """Return each object as a shapely MultiPolygon on the ground, along the edges of its pixels."""
    import shapely

    found = np.empty(len(objects), object)
    for first, end in _batches(objects):
        rings, owner = _polygons(objects[first:end])
        on_ground = shapely.transform(rings, lambda at: np.column_stack(georef.ground(at[:, 1], at[:, 0])))
        # pixels that meet at a corner only are parts of their own, so that every outline is valid
        found[first:end] = shapely.multipolygons(on_ground, indices=owner)
    return found


def middles(objects: Sequence[Masked], georef: GeoRef) -> NDArray[Any]:
    """Return the middle of each object's box as a shapely Point on the ground."""
    import shapely

    rows = np.array([each.window.row + each.window.height / 2 for each in objects])
    cols = np.array([each.window.col + each.window.width / 2 for each in objects])
    if not objects:
        return np.empty(0, object)
    return np.asarray(shapely.points(*georef.ground(rows, cols)), object)


def areas(objects: Sequence[Masked], pixel_area: PixelArea | None) -> NDArray[np.float64]:
    """Return areas on the ellipsoid in square metres; in pixels where the size of pixels is not known.

    Of runs along rows: the integral of pixel area at the four corners of a run is its area, wherever it lies.
    """
    if pixel_area is None:
        return np.array([np.count_nonzero(each.mask) for each in objects], np.float64)
    found = np.zeros(len(objects))
    for first, end in _batches(objects):
        runs = [_runs(each) for each in objects[first:end]]
        row, start, stop = (np.concatenate(parts) for parts in zip(*runs, strict=True))
        owner = np.repeat(np.arange(end - first), [len(each[0]) for each in runs])
        at = pixel_area.integral_m2
        size_m2 = at(row + 1, stop) - at(row, stop) - at(row + 1, start) + at(row, start)
        found[first:end] = np.bincount(owner, size_m2, end - first)
    return found


def _runs(each: Masked) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return row, first column and end of the runs of a mask."""
    sides = np.zeros((each.window.height, each.window.width + 2), np.int8)
    sides[:, 1:-1] = each.mask
    steps = np.diff(sides, axis=1)
    row, start = np.nonzero(steps == 1)
    stop = np.nonzero(steps == -1)[1]
    corner = each.window
    return (
        (row + corner.row).astype(float),
        (start + corner.col).astype(float),
        (stop + corner.col).astype(float),
    )


def _batches(objects: Sequence[Masked]) -> Iterator[tuple[int, int]]:
    if not objects:
        return
    batch = np.cumsum([each.window.num_px for each in objects]) // _AT_ONCE_PX
    yield from pairwise([0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(objects)])


def _polygons(objects: Sequence[Masked]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Outline masks that stand one below the other in one picture; columns and rows are those of the scene.

    +------+
    |  ##  | 1      One call for all of them: each has a number of its own, so that none grows into the next.
    +------+--+
    | ####### | 2
    +---------+
    """
    import shapely
    from rasterio import features

    heights = [each.window.height for each in objects]
    tops = np.cumsum([0, *heights[:-1]])
    sheet = np.zeros((sum(heights), max(each.window.width for each in objects)), np.int32)
    for number, (top, each) in enumerate(zip(tops.tolist(), objects, strict=True), start=1):
        part = sheet[top : top + each.window.height, : each.window.width]
        part[each.mask] = number
    shapes, owner = [], []
    for geometry, number in features.shapes(sheet, mask=sheet > 0, connectivity=4):
        outside, *holes = geometry["coordinates"]
        shapes.append(shapely.Polygon(outside, holes))
        owner.append(int(number) - 1)
    order = np.argsort(owner, kind="stable")
    owners = np.array(owner, np.int64)[order]
    found = np.array(shapes, object)[order]
    moves = np.array(
        [(each.window.col, each.window.row - top) for top, each in zip(tops, objects, strict=True)]
    )
    of_point = np.repeat(owners, shapely.get_num_coordinates(found))
    return shapely.set_coordinates(found, shapely.get_coordinates(found) + moves[of_point]), owners
