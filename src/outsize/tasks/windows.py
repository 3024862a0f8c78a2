"""Windows drawn from scenes, for every task whose samples are parts of scenes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outsize.data.sample import Samples
from outsize.data.sampling import EpochMix, TrainingWindows, index_blocks
from outsize.progress import Reporter
from outsize.tasks.task import ToLearn


def open_windows(given: ToLearn, reporter: Reporter) -> tuple[Samples, NDArray[np.int64] | None]:
    """Open what windows are drawn from; labels are read for what there is of each class only where that is needed."""
    section, index = given.section, None
    mix = EpochMix(section.rare_share, section.empty_share)
    if mix.needs_index or section.class_weights != "none":
        with reporter.bar("classes", len(given.scenes), "scene") as bar:
            index = index_blocks(
                given.scenes,
                given.table,
                given.num_classes,
                # a quarter: a window of half the side, as `scale` may read, still holds a whole block
                block_px=max(8, min(section.window_px) // 4),
                num_threads=section.workers,
                bar=bar,
            )
    windows = TrainingWindows(
        given.scenes,
        given.table,
        tile_px=section.tile_px,
        augmentations=section.augment,
        statistics=given.statistics,
        seed=given.seed,
        mix=mix,
        index=index,
    )
    return windows, None if index is None else index.of_scenes
