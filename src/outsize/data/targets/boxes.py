"""Boxes of objects, each with a class; those that are neutral are neither learnt nor scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.boxes import NEUTRAL, SceneBoxes
from outsize.tiles.window import Window

_NONE = 0  # label of a place in a table that no box is in
_LEAST_SEEN = 0.3  # share of a box inside its window, below which nobody can say what it is
_PLACES = 16  # tables grow by so many: few different shapes


@dataclass(frozen=True, eq=False)
class BoxList:
    """The boxes of a sample, in the order of their file; class NEUTRAL is ignored."""

    size: tuple[int, int]  # height, width of the picture
    sides: NDArray[np.float32]  # box; left, top, right, bottom
    class_ids: NDArray[np.int64]

    @staticmethod
    def of(held: SceneBoxes, window: Window) -> BoxList:
        """Return what a window shows of the boxes of a scene; of what is hardly in it nothing is learnt."""
        sides = held.boxes.sides - np.array([window.col, window.row] * 2)
        cut = np.clip(sides, 0, np.array([window.width, window.height] * 2))
        areas, seen = (np.clip(each[:, 2:] - each[:, :2], 0, None).prod(1) for each in (sides, cut))
        is_there = seen > 0
        ids = np.where(seen < _LEAST_SEEN * areas, NEUTRAL, held.class_ids)
        return BoxList((window.height, window.width), cut[is_there].astype(np.float32), ids[is_there])

    def known_in(self, known: NDArray[np.bool_]) -> Self:
        """Make boxes neutral whose middle lies where nothing is known (row, column)."""
        across, down = ((self.sides[:, axis] + self.sides[:, axis + 2]) / 2 for axis in (0, 1))
        rows = np.clip(down.astype(int), 0, self.size[0] - 1)
        cols = np.clip(across.astype(int), 0, self.size[1] - 1)
        return replace(self, class_ids=np.where(known[rows, cols], self.class_ids, NEUTRAL))

    def flip(self) -> Self:
        """Mirror left-right."""
        left, top, right, bottom = self.sides.T
        width = np.float32(self.size[1])
        return replace(self, sides=np.stack((width - right, top, width - left, bottom), 1))

    def turn(self, quarters: int) -> Self:
        """Turn against the clock: the right side becomes the top."""
        turned = self
        for _ in range(quarters % 4):
            (height, width), (left, top, right, bottom) = turned.size, turned.sides.T
            far = np.float32(width)
            sides = np.stack((top, far - right, bottom, far - left), 1)
            turned = replace(turned, size=(width, height), sides=sides)
        return turned

    def resize(self, size: tuple[int, int]) -> Self:
        """Bring them to (height, width) of their picture."""
        by_row, by_col = size[0] / self.size[0], size[1] / self.size[1]
        factors = np.array([by_col, by_row] * 2, np.float32)
        return replace(self, size=size, sides=self.sides * factors)

    def count(self, num_classes: int) -> NDArray[np.int64]:
        """Count the boxes of each class."""
        return np.bincount(self.class_ids[self.class_ids >= 0], minlength=num_classes)[:num_classes]

    def stack(self, all_of_batch: Sequence[BoxList]) -> BoxLists:
        """Return the boxes of a batch as one table, filled up with places without a box."""
        most = max(1, *(len(each.sides) for each in all_of_batch))
        shape = len(all_of_batch), -(-most // _PLACES) * _PLACES
        sides, labels = np.zeros((*shape, 4), np.float32), np.full(shape, _NONE, np.int64)
        for number, each in enumerate(all_of_batch):
            sides[number, : len(each.sides)] = each.sides
            labels[number, : len(each.sides)] = np.where(each.class_ids < 0, NEUTRAL, each.class_ids + 1)
        return BoxLists(
            torch.from_numpy(sides), torch.from_numpy(labels), self.size, Window(0, 0, *self.size)
        )


@dataclass(frozen=True)
class BoxLists:
    """The boxes of the samples of a batch, in a table of one shape."""

    sides: Tensor  # sample, place, 4; left, top, right, bottom
    labels: Tensor  # sample, place; class from 1 on, 0 no box, -1 neutral
    size: tuple[int, int]  # of a whole picture, of which this may be a part
    core: Window  # what is learnt from, in each picture

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.sides)

    def tensors(self) -> Iterator[Tensor]:
        """Yield sides and labels."""
        yield from (self.sides, self.labels)

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change sides and labels."""
        return replace(self, sides=change(self.sides), labels=change(self.labels))

    def part(self, samples: slice) -> Self:
        """Return some of the samples."""
        return replace(self, sides=self.sides[samples], labels=self.labels[samples])

    def crop(self, read: Window, core: Window) -> Self:
        """Move the boxes into a window of every picture, of which only the core is learnt from.

        They stay whole: what a cell inside the core is to find may go on outside of it.
        """
        offset = self.sides.new_tensor([read.col, read.row] * 2)
        return replace(self, sides=self.sides - offset, core=core.intersect(self.core).within(read))
