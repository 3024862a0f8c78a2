"""Whole pictures with one class each, read from files that hold one or many of them, and brought to one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from outsize.data.arrays import nearest_px
from outsize.data.opened import OpenScenes, ready_for_processes
from outsize.data.sample import IGNORE, Sample
from outsize.data.scenes import LabelledScene, read_labels
from outsize.data.targets import OneClass
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tiles.window import Window
from outsize.units import Size, num_px_of, sides_of


@dataclass(frozen=True)
class PictureFile:
    """A scene of pictures of one size, below one another."""

    image: SceneInfo
    picture_px: tuple[int, int]
    areas: tuple[Window, ...] = ()  # that are meant; none: all of it

    @property
    def rows(self) -> NDArray[np.int64]:
        """Return where each picture begins."""
        areas = self.areas or (self.image.window,)
        return np.concatenate([np.arange(each.row, each.row_end, self.picture_px[0]) for each in areas])


class Pictures:
    """The pictures of files, one after the other, each brought to one size."""

    def __init__(
        self,
        files: Sequence[PictureFile],
        size_px: Size,
        class_ids: NDArray[np.uint8] | None = None,
        *,
        as_float: bool = False,
    ) -> None:
        """`class_ids` are those of all pictures; without them none is known."""
        self._files, self._size_px, self._as_float = tuple(files), sides_of(size_px), as_float
        rows = [each.rows for each in self._files]
        self._rows = np.concatenate(rows)
        self._numbers = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        self.class_ids = np.full(len(self._rows), IGNORE, np.uint8) if class_ids is None else class_ids
        self._open = OpenScenes()

    def __len__(self) -> int:
        """Count the pictures."""
        return len(self._rows)

    def name(self, index: int) -> str:
        """Name a picture by its file, and by its number where that holds several."""
        file, height = self._files[self._numbers[index]], self._files[self._numbers[index]].picture_px[0]
        number = f"#{int(self._rows[index]) // height}" if file.image.height > height else ""
        return f"{file.image.path}{number}"

    def read(self, index: int) -> Sample:
        """Read a picture and bring it to the size of all."""
        file = self._files[self._numbers[index]]
        window = Window(int(self._rows[index]), 0, *file.picture_px)
        pixels = np.empty((file.image.num_bands, *file.picture_px), self._dtype(file.image))
        valid = np.empty(file.picture_px, np.bool_)
        with self._open.lend(file.image) as reader:
            reader.read_into(window, pixels, valid)
        target = OneClass(int(self.class_ids[index]))
        if valid.shape == self._size_px:
            return Sample(pixels, valid, target)
        rows, cols = (nearest_px(*sides) for sides in zip(valid.shape, self._size_px, strict=True))
        return Sample(brought_to(pixels, self._size_px), valid.take(rows, 0).take(cols, 1), target)

    @property
    def sample_bytes(self) -> int:
        """What a sample takes: its bands, and which pixels are valid."""
        infos = [each.image for each in self._files]
        most = max(info.num_bands * self._dtype(info).itemsize for info in infos)
        return num_px_of(self._size_px) * (most + 1)

    def share_memory(self, num_processes: int, limit_bytes: int = 0) -> None:
        """Be ready for as many copies of this in other processes."""
        self._open.close()
        infos = [each.image for each in self._files]
        self._open = ready_for_processes(infos, num_processes, limit_bytes)

    def close(self) -> None:
        """Close every file."""
        self._open.close()

    def _dtype(self, info: SceneInfo) -> np.dtype[Any]:
        keeps = info.dtype == "uint8" and not self._as_float
        return np.dtype(info.dtype if keeps else "float32")


def labelled_pictures(
    scenes: Sequence[LabelledScene], table: NDArray[np.uint8], size_px: Size, *, as_float: bool = False
) -> Pictures:
    """Return the pictures of labelled scenes with their classes."""
    files, classes = [], []
    known: dict[SceneInfo, NDArray[np.uint8]] = {}  # of labels: pictures of one class and size share them
    for scene in scenes:
        assert scene.picture_px is not None, scene.image.path
        file = PictureFile(scene.image, scene.picture_px, scene.areas)
        if scene.labels not in known:
            with SceneReader(scene.labels) as reader:
                known[scene.labels] = read_labels(reader, Window(0, 0, scene.labels.height, 1), table)[:, 0]
        files.append(file)
        classes.append(known[scene.labels][file.rows])
    return Pictures(files, size_px, np.concatenate(classes), as_float=as_float)


def brought_to(image: NDArray[Any], size_px: tuple[int, int]) -> NDArray[Any]:
    """Bring an image (band, row, column) of bytes or float32 to a size; of a much larger one every pixel counts."""
    tensor = torch.from_numpy(np.ascontiguousarray(image))[None]
    made: NDArray[Any] = functional.interpolate(tensor, size_px, mode="bilinear", antialias=True)[0].numpy()
    return made
