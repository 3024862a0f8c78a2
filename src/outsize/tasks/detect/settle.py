"""Boxes that neighbouring tiles saw of a scene: every object once, whole where some tile saw it whole.

         read by A
    +------------------+ - - - - - -+        1  seen whole by A and B: the one whose tile has its middle is kept
    |   core of A  |   :            |        2  cut by the border of what A read, whole for B: B's is kept
    |              |  (1)   (2      |        3  cut for both, larger than tiles overlap: the parts are united
    |         (3  =|===:=========   |
    +------------------+            |        A box that does not touch its tile's core is another tile's matter.
                   :     read by B  |
                   + - - - - - - - -+

Boxes of two tiles are of one object where they are of one class and agree on the ground that both tiles read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.boxes import overlaps
from outsize.tiles.window import Tile, Window

EDGE_PX = 2.0  # a box that ends so near to the border of what was read may go on behind it
SAME = 0.5  # common area over all, on common ground, of two boxes of one object


@dataclass(frozen=True, eq=False)
class FoundBoxes:
    """Boxes that a detector found, in the rows and columns of their picture or scene."""

    sides: NDArray[np.float64]  # box; left, top, right, bottom
    class_ids: NDArray[np.int64]
    scores: NDArray[np.float64]

    def __len__(self) -> int:
        """Count the boxes."""
        return len(self.sides)

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> FoundBoxes:
        """Return some of the boxes."""
        return FoundBoxes(self.sides[which], self.class_ids[which], self.scores[which])

    def moved(self, window: Window) -> FoundBoxes:
        """Return boxes of a window in the rows and columns of what it was cut out of."""
        return FoundBoxes(self.sides + np.array([window.col, window.row] * 2), self.class_ids, self.scores)

    def scaled(self, factor: float) -> FoundBoxes:
        """Return the boxes of the picture at another size."""
        return FoundBoxes(self.sides * factor, self.class_ids, self.scores)


def no_found() -> FoundBoxes:
    """Return the boxes of a picture in which nothing was found."""
    return FoundBoxes(np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))


def joined(parts: Sequence[FoundBoxes]) -> FoundBoxes:
    """Return boxes of several lists one after the other."""
    if not parts:
        return no_found()
    sides, ids, scores = (
        [getattr(each, name) for each in parts] for name in ("sides", "class_ids", "scores")
    )
    return FoundBoxes(np.concatenate(sides), np.concatenate(ids), np.concatenate(scores))


def settle(seen: Sequence[tuple[Tile, FoundBoxes]], scene: Window) -> FoundBoxes:
    """Return every object once; `seen` are the boxes of each tile in the rows and columns of its window."""
    parts, reads, numbers, cut, home = [], [], [], [], []
    for number, (tile, found) in enumerate(seen):
        placed = _inside(found.moved(tile.read), scene)
        placed = placed.take(overlaps(placed.sides, _sides_of(tile.core)) > 0)
        parts.append(placed)
        reads.append(np.tile(_sides_of(tile.read), (len(placed), 1)))
        numbers.append(np.full(len(placed), number))
        cut.append(_are_cut(placed.sides, tile.read, scene))
        home.append(_are_home(placed.sides, tile.core))
    every = joined(parts)
    if len(seen) < 2 or not len(every):
        return _in_order(every)
    read, tiles = np.concatenate(reads), np.concatenate(numbers)
    is_cut, is_home = np.concatenate(cut), np.concatenate(home)
    same = _same_ones(every, read, tiles)
    # whole ones first, of these the surer, of about as sure ones that whose tile has its middle
    order = np.lexsort((every.scores * -1, ~is_home, -np.round(every.scores, 1), is_cut))
    kept: set[int] = set()
    left: list[int] = []
    for index in order.tolist():
        if any(other in kept for other in same[index]):
            continue
        (left.append if is_cut[index] else kept.add)(index)
    whole = every.take(np.array(sorted(kept), np.intp))
    return _in_order(joined([whole, _united(every, left, same)]))


def _united(every: FoundBoxes, parts: Sequence[int], same: Sequence[Sequence[int]]) -> FoundBoxes:
    """Unite the parts of objects that no tile saw whole; the score is that of the surest."""
    todo, found = set(parts), []
    for first in parts:
        if first not in todo:
            continue
        todo.remove(first)
        group, waiting = [first], [first]
        while waiting:
            for other in same[waiting.pop()]:
                if other in todo:
                    todo.remove(other)
                    group.append(other)
                    waiting.append(other)
        sides = every.sides[group]
        around = np.concatenate((sides[:, :2].min(0), sides[:, 2:].max(0)))
        found.append(
            FoundBoxes(around[None], every.class_ids[[first]], every.scores[group].max(keepdims=True))
        )
    return joined(found)


def _same_ones(every: FoundBoxes, read: NDArray[np.float64], tiles: NDArray[np.intp]) -> list[list[int]]:
    """List for each box those of other tiles that are of the same object."""
    import shapely

    boxes: Any = shapely.box(*every.sides.T)
    one, other = shapely.STRtree(boxes).query(boxes, predicate="intersects")
    apart = (tiles[one] != tiles[other]) & (every.class_ids[one] == every.class_ids[other])
    one, other = one[apart], other[apart]
    low = np.maximum(read[one, :2], read[other, :2])
    high = np.minimum(read[one, 2:], read[other, 2:])
    ground = np.concatenate((low, high), 1)
    here, there = overlaps(every.sides[one], ground), overlaps(every.sides[other], ground)
    shared = overlaps(every.sides[one], every.sides[other])
    # what two tiles share of a box, both have read
    agree = shared >= SAME * (here + there - shared)
    found: list[list[int]] = [[] for _ in range(len(every))]
    for first, second in zip(one[agree].tolist(), other[agree].tolist(), strict=True):
        found[first].append(second)
    return found


def _inside(found: FoundBoxes, scene: Window) -> FoundBoxes:
    """Cut boxes at the border of their scene; what is behind it is none."""
    low, high = _sides_of(scene)[:2], _sides_of(scene)[2:]
    sides = np.concatenate(
        (np.clip(found.sides[:, :2], low, high), np.clip(found.sides[:, 2:], low, high)), 1
    )
    is_there = (sides[:, 2:] - sides[:, :2]).min(1, initial=np.inf) > 0.5
    return FoundBoxes(sides, found.class_ids, found.scores).take(is_there)


def _are_cut(sides: NDArray[np.float64], read: Window, scene: Window) -> NDArray[np.bool_]:
    """Say which boxes end where the reading did, and the scene does not."""
    left, top, right, bottom = sides.T
    found: NDArray[np.bool_] = (read.row > scene.row) & (top - read.row < EDGE_PX)
    found |= (read.col > scene.col) & (left - read.col < EDGE_PX)
    found |= (read.row_end < scene.row_end) & (read.row_end - bottom < EDGE_PX)
    found |= (read.col_end < scene.col_end) & (read.col_end - right < EDGE_PX)
    return found


def _are_home(sides: NDArray[np.float64], core: Window) -> NDArray[np.bool_]:
    across, down = (sides[:, 0] + sides[:, 2]) / 2, (sides[:, 1] + sides[:, 3]) / 2
    found: NDArray[np.bool_] = (core.row <= down) & (down < core.row_end)
    found &= (core.col <= across) & (across < core.col_end)
    return found


def _sides_of(window: Window) -> NDArray[np.float64]:
    return np.array([window.col, window.row, window.col_end, window.row_end], np.float64)


def _in_order(found: FoundBoxes) -> FoundBoxes:
    """Return the surest boxes first, whatever the order of the tiles."""
    return found.take(np.lexsort((found.sides[:, 0], found.sides[:, 1], -found.scores)))
