"""Training windows drawn from scenes; which window sample i of epoch e is depends on the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.boxes import BoxFiles
from outsize.data.object_files import ObjectFiles
from outsize.data.opened import OpenScenes, ready_for_processes
from outsize.data.pixels import SHIFT_PX, augment, draw_size, resize
from outsize.data.sample import IGNORE, Sample
from outsize.data.sampling.blocks import BlockIndex, areas_of
from outsize.data.sampling.draw import EpochMix, Places, SceneWindow
from outsize.data.scenes import LabelledScene, read_labels
from outsize.data.statistics import BandStatistics
from outsize.data.targets import BoxList, ClassRaster, ObjectList
from outsize.raster.reading import SceneInfo
from outsize.units import Size, num_px_of

_MAX_TRIES = (
    20  # for a window with the labels wanted; the later half goes where several classes are known to be
)
_FEW = 8  # rows and columns of which one is looked at first
_NUM_PROBES = 400  # windows looked at to learn how many have one class only


class TrainingWindows:
    """Draws windows of one size from labelled scenes; holds their open files until closed."""

    def __init__(
        self,
        scenes: Sequence[LabelledScene],
        table: NDArray[np.uint8],
        *,
        tile_px: Size,
        augmentations: Sequence[str],
        statistics: BandStatistics,
        seed: int,
        mix: EpochMix | None = None,
        index: BlockIndex | None = None,
    ) -> None:
        self._scenes, self._table, self._seed = tuple(scenes), table, seed
        self._tile_px, self._statistics = tile_px, statistics
        self._widely = "scale" in augmentations
        self._scales = self._widely or "shift" in augmentations
        self._augmentations = tuple(name for name in augmentations if name not in ("scale", "shift"))
        self._adds_noise = "noise" in augmentations
        self._open = OpenScenes()
        self._objects, self._boxes = ObjectFiles(), BoxFiles()
        # classes in a window that says little: of pixels one; around objects there is none
        about_objects = any(scene.objects is not None or scene.boxes is not None for scene in self._scenes)
        self._num_few = 0 if about_objects else 1
        self._mix = mix or EpochMix()
        if self._mix.needs_index and index is None:
            raise ValueError("rare_share and empty_share need an index of the labels")
        shift_px = SHIFT_PX if "shift" in augmentations else 0
        self._places = Places(self._scenes, index, self._num_few, shift_px=shift_px)
        # enough windows to cover the scenes once
        self.samples_per_cover = max(1, round(self._places.num_px / num_px_of(tile_px)))
        self._keep_empty = self._share_kept()

    def sample(self, epoch: int, index: int) -> Sample:
        """Return sample `index` of `epoch`: a function of (seed, epoch, index), not of order or thread."""
        rng = np.random.default_rng((self._seed, epoch, index))
        at_rare = rng.random() < self._mix.rare_share
        num_wanted = self._num_few + (rng.random() >= self._keep_empty)
        for attempt in range(_MAX_TRIES):
            at_mixed = num_wanted > self._num_few and attempt >= _MAX_TRIES // 2
            place = self._draw(rng, at_rare, at_mixed=at_mixed)
            labels = self._read_labels(place)
            # the image is read only for labels that will do
            if has_classes(labels, num_wanted) or attempt == _MAX_TRIES - 1:
                drawn = self._read(place, labels)
                if has_classes(labels, num_wanted):  # of what is valid
                    break
        return augment(resize(drawn, self._tile_px), self._augmentations, rng, self._statistics)

    def _draw(self, rng: np.random.Generator, at_rare: bool, at_mixed: bool = False) -> SceneWindow:
        side = draw_size(rng, self._tile_px, widely=self._widely) if self._scales else self._tile_px
        if at_mixed:
            return self._places.at_mixed(rng, side)
        return self._places.at_rare(rng, side) if at_rare else self._places.anywhere(rng, side)

    def _read_labels(self, place: SceneWindow) -> NDArray[np.uint8]:
        """Read the labels inside the areas of the split; also in those beside the one that was drawn."""
        scene, window = self._scenes[place.scene], place.window
        inside = window.intersect(
            scene.labels.window
        )  # a window twice as wide as its picture is empty for the most
        labels = np.full((window.height, window.width), IGNORE, np.uint8)
        with self._open.lend(scene.labels) as reader:
            labels[inside.within(window).slices] = read_labels(reader, inside, self._table)
        if scene.areas:
            labels[~self._inside(place)] = IGNORE
        return labels

    def _inside(self, place: SceneWindow) -> NDArray[np.bool_]:
        window = place.window
        inside = np.zeros((window.height, window.width), np.bool_)
        for area in areas_of(self._scenes[place.scene]):
            inside[window.intersect(area).within(window).slices] = True
        return inside

    def _read(self, place: SceneWindow, labels: NDArray[np.uint8]) -> Sample:
        info = self._scenes[place.scene].image
        pixels = np.empty((info.num_bands, *labels.shape), self._dtype(info))
        if self._scales and pixels.dtype == np.uint8 and not info.band_indexes:
            # the bands of a pixel side by side, as in a picture, and as they are brought to another size quickest
            pixels = np.moveaxis(np.empty((*labels.shape, info.num_bands), np.uint8), 2, 0)
        valid = np.empty(labels.shape, np.bool_)
        with self._open.lend(info) as reader:
            reader.read_into(place.window, pixels, valid)
        labels[~valid] = IGNORE
        sample = Sample(pixels, valid, ClassRaster(labels))
        if self._scenes[place.scene].boxes is not None:
            return self._with_boxes(sample, place)
        return (
            sample if self._scenes[place.scene].objects is None else self._with_objects(sample, labels, place)
        )

    def _dtype(self, info: SceneInfo) -> np.dtype[Any]:
        """Return the dtype of samples of a scene, whatever is drawn for each, for batches have one.

        Pictures of bytes stay bytes at any scale; of other numbers those between two matter.
        """
        as_float = self._adds_noise or (self._scales and info.dtype != "uint8")
        return np.dtype("float32" if as_float else info.dtype)

    def _with_objects(self, sample: Sample, labels: NDArray[np.uint8], place: SceneWindow) -> Sample:
        """Add the objects of a window; what may not be learnt from is blanked out, or it would be taken for empty."""
        scene = self._scenes[place.scene]
        assert scene.objects is not None
        objects, known = self._objects.in_window(
            scene.objects, place.window, self._inside(place), scene.image.shrink
        )
        np.copyto(sample.image, 0, where=~known)
        return replace(sample, valid=sample.valid & known, target=ObjectList(ClassRaster(labels), objects))

    def _with_boxes(self, sample: Sample, place: SceneWindow) -> Sample:
        """Put the boxes of a window in place of the raster; outside of the areas nothing is seen nor learnt."""
        scene = self._scenes[place.scene]
        assert scene.boxes is not None
        boxes = BoxList.of(self._boxes.of(scene.boxes, scene.image.shrink), place.window)
        valid = sample.valid
        if scene.areas:
            valid = valid & self._inside(place)
            np.copyto(sample.image, 0, where=~valid)
            boxes = boxes.known_in(valid)
        return replace(sample, valid=valid, target=boxes)

    def _share_kept(self) -> float:
        """Return the share of windows with one class to keep, so that not more than `empty_share` remain."""
        if self._mix.empty_share >= 1:
            return 1.0
        rng = np.random.default_rng((self._seed, 2**32 - 1))
        found = []
        for _ in range(_NUM_PROBES):
            place = self._draw(rng, rng.random() < self._mix.rare_share)
            found.append(num_classes(self._read_labels(place)))
        few = self._num_few
        num_few, num_useful = found.count(few), sum(num >= few for num in found)
        return min(1.0, self._mix.empty_share * num_useful / num_few) if num_few else 1.0

    def share_memory(self, num_processes: int, limit_bytes: int = 0) -> None:
        """Be ready for as many copies of this in other processes."""
        self._open.close()
        infos = [info for scene in self._scenes for info in (scene.image, scene.labels)]
        self._open = ready_for_processes(infos, num_processes, limit_bytes)

    @property
    def sample_bytes(self) -> int:
        """What a sample takes: its bands, which pixels are valid, and their classes."""
        images = [scene.image for scene in self._scenes]
        most = max(info.num_bands * self._dtype(info).itemsize for info in images)
        return num_px_of(self._tile_px) * (most + 2)

    def close(self) -> None:
        """Close every file."""
        self._open.close()


def has_classes(labels: NDArray[np.uint8], num: int) -> bool:
    """Say whether there are so many classes in an array of labels, or more; a few of the labels often tell."""
    return num_classes(labels[::_FEW, ::_FEW]) >= num or num_classes(labels) >= num


def num_classes(labels: NDArray[np.uint8]) -> int:
    """Count the classes in an array of labels."""
    return int(np.count_nonzero(np.bincount(labels.ravel(), minlength=IGNORE + 1)[:IGNORE]))
