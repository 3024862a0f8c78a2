"""One class for the whole picture: no change of its pixels changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.tiles.window import Window


@dataclass(frozen=True)
class OneClass:
    """The class of a picture."""

    class_id: int  # IGNORE: unknown

    def flip(self) -> Self:
        """Return the same."""
        return self

    def turn(self, quarters: int) -> Self:  # noqa: ARG002 (as every target)
        """Return the same."""
        return self

    def resize(self, size: tuple[int, int]) -> Self:  # noqa: ARG002 (as every target)
        """Return the same."""
        return self

    def count(self, num_classes: int) -> NDArray[np.int64]:
        """Count one picture of its class."""
        counts = np.zeros(num_classes, np.int64)
        counts[self.class_id : self.class_id + 1] = 1  # none, where the class is IGNORE
        return counts

    def stack(self, all_of_batch: Sequence[OneClass]) -> OneClassEach:
        """Return the classes of a batch."""
        return OneClassEach(torch.tensor([each.class_id for each in all_of_batch], dtype=torch.uint8))


@dataclass(frozen=True)
class OneClassEach:
    """The class of each picture of a batch."""

    classes: Tensor  # sample; uint8

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.classes)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the classes."""
        yield self.classes

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change the classes."""
        return type(self)(change(self.classes))

    def part(self, samples: slice) -> Self:
        """Return some of the samples."""
        return type(self)(self.classes[samples])

    def crop(self, read: Window, core: Window) -> Self:  # noqa: ARG002 (as every target)
        """Return the same: a part of a picture is of its class, too."""
        return self
