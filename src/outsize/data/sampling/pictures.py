"""Whole pictures with one class each, brought to one size; which of them is sample i of epoch e depends on the seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from outsize.data.arrays import nearest_px
from outsize.data.opened import LIMIT_BYTES, OpenScenes, ready_for_processes
from outsize.data.pixels import augment
from outsize.data.sample import Sample
from outsize.data.sampling.blocks import areas_of
from outsize.data.scenes import LabelledScene, read_labels
from outsize.data.statistics import BandStatistics
from outsize.data.targets import OneClass
from outsize.errors import JobError, explain
from outsize.raster.reading import SceneInfo
from outsize.tiles.window import Window
from outsize.units import Size, num_px_of, sides_of


class Pictures:
    """The pictures of scenes, one after the other; a scene may hold many of them, below one another."""

    def __init__(
        self,
        scenes: Sequence[LabelledScene],
        table: NDArray[np.uint8],
        size_px: Size,
        *,
        as_float: bool = False,
        open_scenes: OpenScenes | None = None,
    ) -> None:
        self._scenes, self._size_px, self._as_float = tuple(scenes), sides_of(size_px), as_float
        self._open = open_scenes or OpenScenes(LIMIT_BYTES)
        numbers, rows, classes = [], [], []
        known: dict[
            SceneInfo, NDArray[np.uint8]
        ] = {}  # labels of pictures of one class and size are one file
        for number, scene in enumerate(self._scenes):
            assert scene.picture_px is not None, scene.image.path
            height = scene.picture_px[0]
            if scene.labels not in known:
                column = Window(0, 0, scene.labels.height, 1)
                with self._open.lend(scene.labels) as reader:
                    known[scene.labels] = read_labels(reader, column, table)[::height, 0]
            for area in areas_of(scene):
                own = np.arange(area.row, area.row_end, height)
                rows.append(own)
                numbers.append(np.full(own.size, number, np.int32))
                classes.append(known[scene.labels][own // height])
        self._rows, self._numbers = np.concatenate(rows), np.concatenate(numbers)
        self.class_ids = np.concatenate(classes)

    def __len__(self) -> int:
        """Count the pictures."""
        return len(self.class_ids)

    def name(self, index: int) -> str:
        """Name a picture by its file, and by its number where that holds several."""
        scene, row = self._scenes[self._numbers[index]], int(self._rows[index])
        assert scene.picture_px is not None
        number = f"#{row // scene.picture_px[0]}" if scene.image.height > scene.picture_px[0] else ""
        return f"{scene.image.path}{number}"

    def read(self, index: int) -> Sample:
        """Read a picture and bring it to the size of all."""
        scene = self._scenes[self._numbers[index]]
        assert scene.picture_px is not None
        window = Window(int(self._rows[index]), 0, *scene.picture_px)
        pixels = np.empty((scene.image.num_bands, *scene.picture_px), self._dtype(scene.image))
        valid = np.empty(scene.picture_px, np.bool_)
        with self._open.lend(scene.image) as reader:
            reader.read_into(window, pixels, valid)
        target = OneClass(int(self.class_ids[index]))
        if valid.shape == self._size_px:
            return Sample(pixels, valid, target)
        rows, cols = (nearest_px(*sides) for sides in zip(valid.shape, self._size_px, strict=True))
        return Sample(brought_to(pixels, self._size_px), valid.take(rows, 0).take(cols, 1), target)

    @property
    def sample_bytes(self) -> int:
        """What a sample takes: its bands, and which pixels are valid."""
        images = [scene.image for scene in self._scenes]
        most = max(info.num_bands * self._dtype(info).itemsize for info in images)
        return num_px_of(self._size_px) * (most + 1)

    def share_memory(self, num_processes: int, limit_bytes: int = 0) -> None:
        """Be ready for as many copies of this in other processes."""
        self._open.close()
        infos = [scene.image for scene in self._scenes]
        self._open = ready_for_processes(infos, num_processes, limit_bytes)

    def close(self) -> None:
        """Close every file."""
        self._open.close()

    def _dtype(self, info: SceneInfo) -> np.dtype[Any]:
        keeps = info.dtype == "uint8" and not self._as_float
        return np.dtype(info.dtype if keeps else "float32")


class ShuffledPictures:
    """Draws each picture once in an epoch, in an order of its own."""

    def __init__(
        self,
        scenes: Sequence[LabelledScene],
        table: NDArray[np.uint8],
        *,
        tile_px: Size,
        augmentations: Sequence[str],
        statistics: BandStatistics,
        seed: int,
    ) -> None:
        if "scale" in augmentations:
            found, need = "scale", "changes of a whole picture: flip, turn, noise, jitter, blur"
            raise JobError(explain("train.augment is not for whole pictures", found, need, "leave it out"))
        self._pictures = Pictures(scenes, table, tile_px, as_float="noise" in augmentations)
        self._augmentations, self._statistics, self._seed = tuple(augmentations), statistics, seed
        self._order: tuple[tuple[int, int], NDArray[np.intp]] = (-1, -1), np.zeros(0, np.intp)
        self.samples_per_cover = len(self._pictures)

    def sample(self, epoch: int, index: int) -> Sample:
        """Return sample `index` of `epoch`: a function of (seed, epoch, index), not of order or thread."""
        turn, place = divmod(index, self.samples_per_cover)
        read = self._pictures.read(int(self._drawn(epoch, turn)[place]))
        if not self._augmentations:
            return read
        rng = np.random.default_rng((self._seed, epoch, index))
        return augment(read, self._augmentations, rng, self._statistics)

    def _drawn(self, epoch: int, turn: int) -> NDArray[np.intp]:
        """Return the order of all pictures; threads that need another one at once each make it."""
        key, order = self._order
        if key != (epoch, turn):
            key = (epoch, turn)
            order = np.random.default_rng((self._seed, epoch, turn, 1)).permutation(self.samples_per_cover)
            self._order = key, order
        return order

    @property
    def sample_bytes(self) -> int:
        """What a sample takes."""
        return self._pictures.sample_bytes

    def share_memory(self, num_processes: int, limit_bytes: int = 0) -> None:
        """Be ready for as many copies of this in other processes."""
        self._pictures.share_memory(num_processes, limit_bytes)

    def close(self) -> None:
        """Close every file."""
        self._pictures.close()


def brought_to(image: NDArray[Any], size_px: tuple[int, int]) -> NDArray[Any]:
    """Bring an image (band, row, column) of bytes or float32 to a size; of a much larger one every pixel counts."""
    tensor = torch.from_numpy(np.ascontiguousarray(image))[None]
    made: NDArray[Any] = functional.interpolate(tensor, size_px, mode="bilinear", antialias=True)[0].numpy()
    return made
