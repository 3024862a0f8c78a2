"""Joins what neighbouring tiles saw of a scene: every object once, whole where some tile saw it whole.

         read by A
    +------------------+ - - - - - -+        1  seen whole by A and B: the sighting is kept whose tile has its middle
    |   core of A  |   :            |        2  cut by the border of what A read, whole for B: B's is kept
    |              |  (1)   (2      |        3  cut for both, larger than tiles overlap: the parts are joined
    |         (3  =|===:=========   |
    +------------------+            |        A sighting that does not touch its tile's core is another tile's matter.
                   :     read by B  |
                   + - - - - - - - -+

Sightings of two tiles are one object where they agree on the ground that both tiles read: on all of it, or, where one
is cut, on most of the cut one. Memory goes with the objects; no array of the scene's size is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from outsize.data.object import Object, crop, make_object, shared_px
from outsize.tiles.window import Tile, Window

EDGE_PX = 2  # an object that ends so near to the border of what was read may go on behind it
SAME = 0.5  # common pixels over all, on common ground, of two sightings of one object
INSIDE = 0.7  # of a sighting's pixels inside another of its class: it is a part of it


@dataclass(frozen=True, eq=False)
class Sighting:
    """An object as one tile saw it, in the rows and columns of the scene."""

    object: Object
    tile: Tile

    @property
    def is_cut(self) -> bool:
        """Whether the tile may have seen a part of it only."""
        return self.object.clipped

    @property
    def rank(self) -> tuple[float, bool, float, int, int]:
        """What puts the more trustworthy of two sightings first, whatever the order of the tiles.

        That is the surer one; of two about as sure the one whose tile has the object's middle, and saw more around it.
        """
        window, core = self.object.window, self.tile.core
        row, col = window.row + window.height // 2, window.col + window.width // 2
        at_home = core.row <= row < core.row_end and core.col <= col < core.col_end
        return (-round(self.object.score, 1), not at_home, -self.object.score, window.row, window.col)


def see(objects: Sequence[Object], tile: Tile, scene: Window) -> list[Sighting]:
    """Turn the objects of a tile's window into sightings; those that are other tiles' matter are left out."""
    found = []
    for each in objects:
        window = each.window
        moved = replace(window, row=window.row + tile.read.row, col=window.col + tile.read.col)
        placed = replace(each, window=moved, clipped=_is_cut(moved, tile.read, scene))
        if crop([placed], tile.core):
            found.append(Sighting(placed, tile))
    return found


def settle(sightings: Sequence[Sighting], sure: float = 0.0) -> tuple[Object, ...]:
    """Return every object once, by rows and columns.

    Parts with a score of at least `sure` are neither joined to others nor give way to them: what is a guess must not
    change what is known.
    """
    neighbours = _neighbours(sightings)
    order = sorted(range(len(sightings)), key=lambda index: sightings[index].rank)
    kept: set[int] = set()
    for index in order:  # the best whole sighting of each object
        if not sightings[index].is_cut and not any(
            other in kept and _is_same(sightings[index], sightings[other]) for other in neighbours[index]
        ):
            kept.add(index)
    sure_ones = {index for index in order if sightings[index].object.score >= sure}

    def seen_better(index: int, others: set[int]) -> bool:
        return any(
            other in others
            and (other in sure_ones or index not in sure_ones)
            and _is_part(sightings[index], sightings[other])
            for other in neighbours[index]
        )

    parts = [index for index in order if sightings[index].is_cut and not seen_better(index, kept)]
    known = [index for index in parts if index in sure_ones]
    guesses = [index for index in parts if index not in sure_ones and not seen_better(index, set(known))]
    whole = [sightings[index].object for index in kept]
    for some in (known, guesses):
        groups = _groups(some, neighbours, sightings)
        whole += [_join([sightings[index].object for index in group]) for group in groups]
    return tuple(sorted(whole, key=lambda each: (each.window.row, each.window.col, -each.score)))


def _is_cut(window: Window, read: Window, scene: Window) -> bool:
    """Say whether an object ends where the reading did, and the scene does not."""
    return (
        (read.row > scene.row and window.row - read.row < EDGE_PX)
        or (read.col > scene.col and window.col - read.col < EDGE_PX)
        or (read.row_end < scene.row_end and read.row_end - window.row_end < EDGE_PX)
        or (read.col_end < scene.col_end and read.col_end - window.col_end < EDGE_PX)
    )


def _neighbours(sightings: Sequence[Sighting]) -> list[list[int]]:
    """List for each sighting those of other tiles whose windows meet its own."""
    import shapely

    found: list[list[int]] = [[] for _ in sightings]
    if not sightings:
        return found
    boxes = shapely.box(*np.array([each.object.box for each in sightings]).T)
    tiles = np.array([each.tile.index for each in sightings])
    one, other = shapely.STRtree(boxes).query(boxes, predicate="intersects")
    apart = tiles[one] != tiles[other]
    for here, there in zip(one[apart].tolist(), other[apart].tolist(), strict=True):
        found[here].append(there)
    return found


def _overlap(one: Sighting, other: Sighting) -> tuple[int, float]:
    """Return the common pixels, and what they are of all pixels on the ground that both tiles read."""
    shared = shared_px(one.object, other.object)
    if not shared:
        return 0, 0.0
    common = one.tile.read.intersect(other.tile.read)
    here, there = (sum(part.num_px for part in crop([each.object], common)) for each in (one, other))
    return shared, shared / (here + there - shared)


def _is_same(one: Sighting, other: Sighting) -> bool:
    """Say whether two whole sightings are of one object; its class may be in doubt, its place is not."""
    shared, share = _overlap(one, other)
    if share >= SAME:
        return True
    smaller_px = min(one.object.num_px, other.object.num_px)
    return one.object.class_id == other.object.class_id and shared >= INSIDE * smaller_px


def _is_part(part: Sighting, other: Sighting) -> bool:
    """Say whether a cut sighting is of an object that was seen better."""
    shared, share = _overlap(part, other)
    return share >= SAME or (
        part.object.class_id == other.object.class_id and shared >= SAME * part.object.num_px
    )


def _groups(
    parts: Sequence[int], neighbours: Sequence[Sequence[int]], sightings: Sequence[Sighting]
) -> list[list[int]]:
    """Gather the parts that belong together."""
    left, groups = set(parts), []
    for first in parts:
        if first not in left:
            continue
        left.remove(first)
        group, todo = [first], [first]
        while todo:
            here = todo.pop()
            for other in neighbours[here]:
                if other in left and _belong(sightings[here], sightings[other]):
                    left.remove(other)
                    group.append(other)
                    todo.append(other)
        groups.append(group)
    return groups


def _belong(one: Sighting, other: Sighting) -> bool:
    return one.object.class_id == other.object.class_id and (_is_part(one, other) or _is_part(other, one))


def _join(objects: Sequence[Object]) -> Object:
    """Unite parts; the score is that of the surest of them."""
    best = max(objects, key=lambda each: each.score)
    if len(objects) == 1:
        return best
    rows, cols = [each.window.row for each in objects], [each.window.col for each in objects]
    window = Window(
        min(rows),
        min(cols),
        max(each.window.row_end for each in objects) - min(rows),
        max(each.window.col_end for each in objects) - min(cols),
    )
    mask = np.zeros((window.height, window.width), np.bool_)
    for each in objects:
        mask[each.window.within(window).slices] |= each.mask
    whole = make_object(best.class_id, window, mask, score=best.score)
    assert whole is not None
    return whole
