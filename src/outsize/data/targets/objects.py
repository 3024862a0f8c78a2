"""Objects with masks, and the raster of their classes, in which what is around them is ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outsize.data import object as shapes
from outsize.data.object import Object
from outsize.data.targets.raster import ClassRaster, ClassRasters
from outsize.tiles.window import Window


@dataclass(frozen=True)
class ObjectList:
    """The objects of a sample; windows are drawn, and pixels counted, by the raster of their classes."""

    raster: ClassRaster
    objects: tuple[Object, ...]

    def flip(self) -> Self:
        """Mirror left-right."""
        return type(self)(self.raster.flip(), shapes.flip(self.objects, self.raster.labels.shape[1]))

    def turn(self, quarters: int) -> Self:
        """Turn against the clock."""
        height, width = self.raster.labels.shape
        return type(self)(self.raster.turn(quarters), shapes.turn(self.objects, height, width, quarters))

    def resize(self, size: tuple[int, int]) -> Self:
        """Take the nearest pixels of masks."""
        height, width = self.raster.labels.shape
        return type(self)(self.raster.resize(size), shapes.scale(self.objects, (height, width), size))

    def count(self, num_classes: int) -> NDArray[np.int64]:
        """Count the pixels of each class."""
        return self.raster.count(num_classes)

    def stack(self, all_of_batch: Sequence[ObjectList]) -> ObjectLists:
        """Return the objects of a batch."""
        rasters = self.raster.stack([each.raster for each in all_of_batch])
        return ObjectLists(rasters, tuple(each.objects for each in all_of_batch))


@dataclass(frozen=True)
class ObjectLists:
    """The objects of the samples of a batch."""

    rasters: ClassRasters
    objects: tuple[tuple[Object, ...], ...]  # of each sample

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.rasters)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the rasters; objects are no tensors."""
        return self.rasters.tensors()

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change the rasters."""
        return type(self)(self.rasters.each(change), self.objects)

    def part(self, samples: slice) -> Self:
        """Return some of the samples."""
        return type(self)(self.rasters.part(samples), self.objects[samples])

    def crop(self, read: Window, core: Window) -> Self:
        """Cut a window out of every sample; what its core cuts is clipped."""
        inside = np.zeros((read.height, read.width), np.bool_)
        inside[core.within(read).slices] = True
        cut = tuple(shapes.keep_inside(shapes.crop(own, read), inside) for own in self.objects)
        return type(self)(self.rasters.crop(read, core), cut)
