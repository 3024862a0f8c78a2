"""Strings corners to rings, and rings to polygons with holes, for a whole map at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.raster.vectors.regions import EAST, NORTH, SOUTH, WEST, Corners


@dataclass(frozen=True, slots=True)
class Rings:
    """Corners in the order in which they are walked; ring i is `start[i]` up to `start[i + 1]`."""

    row: NDArray[np.int32]
    col: NDArray[np.int32]
    comes_vertically: NDArray[np.bool_]
    start: NDArray[np.int64]
    region: NDArray[np.int64]
    first: NDArray[np.int64]  # place of the ring's topmost, leftmost corner, row by row through the map

    def integrate(self, values: NDArray[Any]) -> NDArray[Any]:
        """Integrate over each ring's inside, given at each corner the integral from the map's corner to there.

        Only vertical borders count (Green's theorem): plus where one ends, minus where one begins.
        """
        signed = np.where(self.comes_vertically, values, -values)
        return np.add.reduceat(signed, self.start[:-1]) if len(self.region) else signed


def uncross(corners: Corners, root: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the ways out after regions that touch themselves at a point were given a simple outline.

    A | .        A and D are one region that meets itself at the point. Turning around A there would lead
    --+--        the outside through the bay and back to the same point: not valid. Going on to D instead
    . | D        leaves the bay as a hole that touches the outside at one point: valid.
    """
    way_out = corners.way_out.copy()
    one, other, region_one, region_other = corners.crossings.T
    same = root[region_one] == root[region_other]
    one, other = one[same], other[same]
    way_out[one], way_out[other] = corners.way_out[other], corners.way_out[one]
    return way_out


def string(corners: Corners, way_out: NDArray[np.int8]) -> Rings:
    """Follow the borders from corner to corner until each ring is closed."""
    follower = _followers(corners, way_out)
    order, start = _walk(follower)
    way_in = corners.way_in[order]
    known = corners.region[order]
    begin = start[:-1]
    has_rings = len(begin) > 0
    return Rings(
        corners.row[order],
        corners.col[order],
        (way_in == SOUTH) | (way_in == NORTH),
        start,
        np.maximum.reduceat(known, begin) if has_rings else known,
        order[begin],
    )


def _followers(corners: Corners, way_out: NDArray[np.int8]) -> NDArray[np.int32]:
    """Link each corner to the next of its ring.

    Along a row of points, borders that are walked eastwards begin and end in turn, so the n-th beginning belongs
    to the n-th end; likewise westwards, and along columns. No search is needed, only the right order.
    """
    follower = np.empty(len(way_out), np.int32)
    for way in (EAST, WEST):
        follower[np.flatnonzero(way_out == way)] = np.flatnonzero(corners.way_in == way)
    by_column = _argsort(corners.col)
    out_by_column, in_by_column = way_out[by_column], corners.way_in[by_column]
    for way in (SOUTH, NORTH):
        follower[by_column[out_by_column == way]] = by_column[in_by_column == way]
    return follower


def _argsort(values: NDArray[np.int32]) -> NDArray[np.int64]:
    """Sort stably by 16 bits at a time, for which numpy has a radix sort."""
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    if len(values) and values.max() > 0xFFFF:
        high = (values >> 16).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order


def _walk(follower: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the corners ring after ring, rings by their first corner, and where each ring starts."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    num = len(follower)
    if num == 0:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    graph = (np.ones(num, np.int8), follower, np.arange(num + 1, dtype=np.int32))
    num_rings, ring = connected_components(csr_array(graph, shape=(num, num)), directed=False)
    first = np.full(num_rings, num, np.int64)
    np.minimum.at(first, ring, np.arange(num))
    first = np.sort(first)
    # Cut each ring before its first corner and hang the next ring there: one long path, walked in one call.
    before = np.empty(num, np.int32)
    before[follower] = np.arange(num, dtype=np.int32)
    path = follower.copy()
    path[before[first[:-1]]] = first[1:]
    path[before[first[-1]]] = first[0]
    graph = (graph[0], path, graph[2])
    order = breadth_first_order(
        csr_array(graph, shape=(num, num)), int(first[0]), directed=True, return_predecessors=False
    ).astype(np.int64)
    place = np.empty(num, np.int64)
    place[order] = np.arange(num)
    return order, np.append(place[first], num)
