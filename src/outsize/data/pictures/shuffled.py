"""Every picture once in an epoch; which of them is sample i of epoch e depends on the seed alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outsize.data.pictures.pictures import labelled_pictures
from outsize.data.pixels import augment
from outsize.data.sample import Sample
from outsize.data.scenes import LabelledScene
from outsize.data.statistics import BandStatistics
from outsize.errors import JobError, explain
from outsize.units import Size


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
        if of_windows := [name for name in augmentations if name in ("scale", "shift")]:
            found, need = of_windows[0], "changes of a whole picture: flip, turn, noise, jitter, light, blur"
            raise JobError(explain("train.augment is not for whole pictures", found, need, "leave it out"))
        self._pictures = labelled_pictures(scenes, table, tile_px, as_float="noise" in augmentations)
        self._augmentations, self._statistics, self._seed = tuple(augmentations), statistics, seed
        self._order: tuple[tuple[int, int], NDArray[np.intp]] = (-1, -1), np.zeros(0, np.intp)
        self.samples_per_cover = len(self._pictures)
        self.class_ids = self._pictures.class_ids

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
