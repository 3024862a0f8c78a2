"""Training windows drawn from frames of rain and those that follow them; more of them where it rains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outsize.data.feeding import prefetch
from outsize.data.frames import UNKNOWN, NumberGrid, known
from outsize.data.opened import OpenScenes, ready_for_processes
from outsize.data.pixels import augment
from outsize.data.sample import Sample
from outsize.data.sampling.blocks import BlockIndex
from outsize.data.sampling.draw import Places, SceneWindow
from outsize.data.scenes import LabelledScene
from outsize.data.statistics import BandStatistics
from outsize.errors import JobError, explain
from outsize.raster.reading import SceneReader
from outsize.tiles.window import Window
from outsize.units import Size, num_px_of, sides_of

_TURNS = ("flip", "turn")
_BLOCK_PX = 64


class RainWindows:
    """Draws windows of one size from frames; holds their open files until closed."""

    def __init__(
        self,
        scenes: Sequence[LabelledScene],
        *,
        tile_px: Size,
        augmentations: Sequence[str],
        wet_share: float,
        wet_level: int,
        seed: int,
    ) -> None:
        """`wet_share` of the windows are drawn where rain of `wet_level` is to come."""
        wrong = [name for name in augmentations if name not in _TURNS]
        if wrong:
            need, remedy = "changes that keep how rain moves: flip, turn", "leave it out"
            raise JobError(explain("train.augment is not for frames", ", ".join(wrong), need, remedy))
        self._scenes, self._tile_px, self._seed = tuple(scenes), tile_px, seed
        self._augmentations, self._wet_share = tuple(augmentations), wet_share
        self._open = OpenScenes()
        index = _where_it_rains(self._scenes, wet_level) if wet_share else None
        self._wet_share = 0.0 if index is None else wet_share
        self._places = Places(self._scenes, index)
        self.samples_per_cover = max(1, round(self._places.num_px / num_px_of(tile_px)))

    def sample(self, epoch: int, index: int) -> Sample:
        """Return sample `index` of `epoch`: a function of (seed, epoch, index), not of order or thread."""
        rng = np.random.default_rng((self._seed, epoch, index))
        at_rain = rng.random() < self._wet_share
        place = (self._places.at_rare if at_rain else self._places.anywhere)(rng, self._tile_px)
        return augment(self._read(place), self._augmentations, rng, _NO_STATISTICS)

    def _read(self, place: SceneWindow) -> Sample:
        scene, (height, width) = self._scenes[place.scene], sides_of(self._tile_px)
        image = np.empty((scene.image.num_bands, height, width), np.int16)
        numbers = np.empty((scene.labels.num_bands, height, width), np.int16)
        valid, is_inside = np.empty((height, width), np.bool_), np.empty((height, width), np.bool_)
        with self._open.lend(scene.image) as reader:
            reader.read_into(place.window, image, valid)
        with self._open.lend(scene.labels) as reader:
            reader.read_into(place.window, numbers, is_inside)
        return Sample(image, valid, grid_of(scene, numbers, is_inside))

    @property
    def sample_bytes(self) -> int:
        """What a sample takes: frames of two bytes, and which pixels are valid."""
        most = max(scene.image.num_bands + scene.labels.num_bands for scene in self._scenes)
        return num_px_of(self._tile_px) * (2 * most + 1)

    def share_memory(self, num_processes: int, limit_bytes: int = 0) -> None:
        """Be ready for as many copies of this in other processes."""
        self._open.close()
        infos = [info for scene in self._scenes for info in (scene.image, scene.labels)]
        self._open = ready_for_processes(infos, num_processes, limit_bytes)

    def close(self) -> None:
        """Close every file."""
        self._open.close()


_NO_STATISTICS = BandStatistics((), ())  # turns need none


def grid_of(scene: LabelledScene, numbers: NDArray[np.int16], is_inside: NDArray[np.bool_]) -> NumberGrid:
    """Return what is learnt of frames: they begin after the last one that is seen."""
    names = scene.image.band_names
    first = next((band for band, name in enumerate(names) if name.startswith("flow")), None)
    np.copyto(numbers, UNKNOWN, where=~is_inside)
    return NumberGrid(numbers, scene.image.path.stem, first)


def _where_it_rains(scenes: Sequence[LabelledScene], wet_level: int) -> BlockIndex | None:
    """Count dry and wet pixels of what is to come in blocks of all scenes; None where no rain comes."""

    def count(number: int) -> NDArray[np.int32]:
        with SceneReader(scenes[number].labels) as reader:
            numbers = reader.read(scenes[number].labels.window).pixels
        wet = (numbers >= wet_level).mean(0)
        dry = known(numbers).mean(0) - wet
        return np.stack([_by_block(each) for each in (dry, wet)], axis=1)

    found = list(prefetch(count, range(len(scenes)), num_threads=2, num_ahead=4))
    places = [_blocks(scene.labels.height, scene.labels.width) for scene in scenes]
    num_px = np.concatenate(found)
    if not num_px[:, 1].any():
        return None
    areas = np.repeat(np.arange(len(scenes)), [len(each) for each in places]).astype(np.int32)
    # only of wet ones: dry ones are never the rarer kind that windows are drawn at
    num_px[:, 0] = np.where(num_px[:, 1].sum() * 2 < num_px.sum(), num_px[:, 0], 0)
    return BlockIndex(areas, np.concatenate(places), num_px, np.array([each.sum(0) for each in found]))


def _by_block(share: NDArray[np.floating]) -> NDArray[np.int32]:
    sums = np.add.reduceat(
        np.add.reduceat(share, range(0, share.shape[0], _BLOCK_PX), 0), range(0, share.shape[1], _BLOCK_PX), 1
    )
    return np.rint(sums).astype(np.int32).ravel()


def _blocks(height: int, width: int) -> NDArray[np.int32]:
    whole = Window(0, 0, height, width)
    held = [
        Window(row, col, _BLOCK_PX, _BLOCK_PX).intersect(whole)
        for row in range(0, height, _BLOCK_PX)
        for col in range(0, width, _BLOCK_PX)
    ]
    return np.array([(each.row, each.col, each.height, each.width) for each in held], np.int32)
