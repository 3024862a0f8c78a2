"""One sample of a training: a window of a scene, or a picture, and what every kind of target of it can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outsize.tiles.window import Window

IGNORE = 255  # class index of what is neither learnt nor scored


class Target(Protocol):
    """What is learnt of one sample; each change is the one that its picture goes through."""

    def flip(self) -> Self:
        """Mirror left-right."""

    def turn(self, quarters: int) -> Self:
        """Turn against the clock, as `numpy.rot90` turns pixels."""

    def resize(self, size: tuple[int, int]) -> Self:
        """Bring it to (height, width) of its picture, by the nearest pixel."""

    def count(self, num_classes: int) -> NDArray[np.int64]:
        """Count what there is of each class; what is ignored is none of them."""

    def stack(self, all_of_batch: Sequence[Any]) -> Targets:
        """Return the targets of a batch, each of the same kind as this one."""


class Targets(Protocol):
    """What is learnt of the samples of a batch."""

    def __len__(self) -> int:
        """Count the samples."""

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change every tensor in the same way, as to copy it."""

    def part(self, samples: slice) -> Self:
        """Return some of the samples."""

    def crop(self, read: Window, core: Window) -> Self:
        """Cut a window out of every sample, of which only the core is learnt from."""


class Samples(Protocol):
    """What a training draws samples from; processes have copies of it."""

    samples_per_cover: int  # that show all there is once

    @property
    def sample_bytes(self) -> int:
        """What a sample takes."""

    def sample(self, epoch: int, index: int) -> Sample:
        """Return sample `index` of `epoch`, whoever asks for it and when."""

    def share_memory(self, num_processes: int, limit_bytes: int = 0) -> None:
        """Be ready for as many copies of this in other processes, which may share so much of decoded pictures."""

    def close(self) -> None:
        """Close every file."""


@dataclass(frozen=True)
class Sample:
    """Raw pixels, which of them are valid, and what is learnt of them."""

    image: NDArray[Any]  # bands, height, width; dtype of the file
    valid: NDArray[np.bool_]  # height, width
    target: Target
