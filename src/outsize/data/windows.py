"""Training windows drawn from scenes; which window sample i of epoch e is depends on the seed alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outsize.data.augment import augment
from outsize.data.sample import IGNORE, Sample
from outsize.data.scenes import LabelledScene, read_labels
from outsize.raster.read import SceneReader
from outsize.tiles.window import Window

_MAX_TRIES = 20  # for a window with at least one labelled pixel


class TrainingWindows:
    """Draws square windows from labelled scenes; holds their open files until closed."""

    def __init__(
        self,
        scenes: Sequence[LabelledScene],
        table: NDArray[np.uint8],
        *,
        tile_px: int,
        augmentations: Sequence[str],
        seed: int,
    ) -> None:
        self._readers = [(SceneReader(scene.image), SceneReader(scene.labels)) for scene in scenes]
        self._table, self._tile_px, self._augmentations = table, tile_px, tuple(augmentations)
        self._seed = seed
        areas = np.array([scene.image.height * scene.image.width for scene in scenes], np.float64)
        self._shares = areas / areas.sum()
        # enough windows to cover the scenes once
        self.samples_per_cover = max(1, round(areas.sum() / tile_px**2))

    def sample(self, epoch: int, index: int) -> Sample:
        """Return sample `index` of `epoch`: a function of (seed, epoch, index), not of order or thread."""
        rng = np.random.default_rng((self._seed, epoch, index))
        for _ in range(_MAX_TRIES):
            drawn = self._draw(rng)
            if (drawn.labels != IGNORE).any():
                break
        return augment(drawn, self._augmentations, rng)

    def _draw(self, rng: np.random.Generator) -> Sample:
        images, labels = self._readers[rng.choice(len(self._readers), p=self._shares)]
        side = self._tile_px
        row = int(rng.integers(max(1, images.info.height - side + 1)))
        col = int(rng.integers(max(1, images.info.width - side + 1)))
        window = Window(row, col, side, side)
        raster = images.read(window)
        classes = read_labels(labels, window, self._table)
        return Sample(raster.pixels, raster.valid, np.where(raster.valid, classes, np.uint8(IGNORE)))

    def close(self) -> None:
        """Close every file."""
        for images, labels in self._readers:
            images.close()
            labels.close()
