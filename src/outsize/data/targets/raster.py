"""A class for each pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.arrays import mirrored, nearest_px
from outsize.data.sample import IGNORE
from outsize.tiles.window import Window

_MANY_PX = 2**17


@dataclass(frozen=True)
class ClassRaster:
    """A class index for each pixel; IGNORE where it is unknown."""

    labels: NDArray[np.uint8]  # height, width

    def flip(self) -> Self:
        """Mirror left-right."""
        return type(self)(np.ascontiguousarray(mirrored(self.labels)))

    def turn(self, quarters: int) -> Self:
        """Turn against the clock."""
        return type(self)(np.ascontiguousarray(np.rot90(self.labels, quarters)))

    def resize(self, size: tuple[int, int]) -> Self:
        """Take the label of the nearest pixel."""
        rows, cols = (nearest_px(*sides) for sides in zip(self.labels.shape, size, strict=True))
        return type(self)(self.labels.take(rows, 0).take(cols, 1))

    def count(self, num_classes: int) -> NDArray[np.int64]:
        """Count the pixels of each class; of many two at a time: each first becomes a number of 8 bytes."""
        flat = self.labels.ravel()
        if flat.size < _MANY_PX:
            num_px: NDArray[np.intp] = np.bincount(flat, minlength=IGNORE + 1)
        else:
            even = flat.size // 2 * 2
            pairs = np.bincount(flat[:even].view(np.uint16), minlength=(IGNORE + 1) ** 2)
            pairs = pairs.reshape(IGNORE + 1, IGNORE + 1)
            num_px = pairs.sum(0) + pairs.sum(1) + np.bincount(flat[even:], minlength=IGNORE + 1)
        return num_px[:num_classes].astype(np.int64)

    def stack(self, all_of_batch: Sequence[ClassRaster]) -> ClassRasters:
        """Return the rasters of a batch."""
        return ClassRasters(torch.from_numpy(np.stack([each.labels for each in all_of_batch])))


@dataclass(frozen=True)
class ClassRasters:
    """A class index for each pixel of a batch."""

    labels: Tensor  # sample, row, column; uint8

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.labels)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the labels."""
        yield self.labels

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change the labels."""
        return type(self)(change(self.labels))

    def part(self, samples: slice) -> Self:
        """Return some of the samples."""
        return type(self)(self.labels[samples])

    def crop(self, read: Window, core: Window) -> Self:
        """Cut a window out of every sample; labels outside of its core are IGNORE.

        labels of the image          labels of the part
        +--------------------+       +-- read -----+
        | 0 0 1 1 1 2 2 2 2  |       | - - - - - - |
        | 0 0 1 1 2 2 2 2 2  |  ->   | - 1 1 2 2 - |
        | 0 0 0 1 2 2 2 2 2  |       | - 0 1 2 2 - |
        +--------------------+       | - - - - - - |
                                     +-------------+
        """
        labels = self.labels.new_full((len(self.labels), read.height, read.width), IGNORE)
        labels[:, *core.within(read).slices] = self.labels[:, *core.slices]
        return type(self)(labels)
