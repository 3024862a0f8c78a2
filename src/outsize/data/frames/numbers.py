"""Grids of numbers, one for each lead of a forecast, with where they are known, and when they begin.

What is not known is below half of UNKNOWN; so the mask is in the numbers, and every change of these keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.arrays import mirrored, nearest_px
from outsize.data.frames.levels import UNKNOWN, known
from outsize.tiles.window import Window


@dataclass(frozen=True, eq=False)
class NumberGrid:
    """The numbers of a sample."""

    numbers: NDArray[np.int16]  # lead, height, width; levels of rain
    starts: str = ""  # the time that leads are counted from, as ISO 8601; "": unknown
    base: int | None = None  # the band of the picture that the first lead's answer is to be added to

    def flip(self) -> Self:
        """Mirror left-right."""
        return replace(self, numbers=np.ascontiguousarray(mirrored(self.numbers)))

    def turn(self, quarters: int) -> Self:
        """Turn against the clock."""
        return replace(self, numbers=np.ascontiguousarray(np.rot90(self.numbers, quarters, axes=(1, 2))))

    def resize(self, size: tuple[int, int]) -> Self:
        """Take the number of the nearest pixel."""
        rows, cols = (nearest_px(*sides) for sides in zip(self.numbers.shape[1:], size, strict=True))
        return replace(self, numbers=self.numbers.take(rows, 1).take(cols, 2))

    def count(self, num_classes: int) -> NDArray[np.int64]:
        """Count the pixels of each lead that are known."""
        counts: NDArray[np.int64] = np.count_nonzero(known(self.numbers), axis=(1, 2)).astype(np.int64)
        return counts[:num_classes]

    def stack(self, all_of_batch: Sequence[NumberGrid]) -> NumberGrids:
        """Return the numbers of a batch."""
        numbers = torch.from_numpy(np.stack([each.numbers for each in all_of_batch]))
        return NumberGrids(numbers, tuple(each.starts for each in all_of_batch), self.base)


@dataclass(frozen=True)
class NumberGrids:
    """The numbers of the samples of a batch."""

    numbers: Tensor  # sample, lead, row, column; int16
    starts: tuple[str, ...]
    base: int | None = None

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.numbers)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the numbers."""
        yield self.numbers

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change the numbers."""
        return replace(self, numbers=change(self.numbers))

    def part(self, samples: slice) -> Self:
        """Return some of the samples."""
        return replace(self, numbers=self.numbers[samples], starts=self.starts[samples])

    def crop(self, read: Window, core: Window) -> Self:
        """Cut a window out of every sample; outside of its core nothing is known."""
        shape = (*self.numbers.shape[:2], read.height, read.width)
        cut = self.numbers.new_full(shape, UNKNOWN)
        rows, cols = core.within(read).slices
        cut[..., rows, cols] = self.numbers[..., *core.slices]
        return replace(self, numbers=cut)
