"""Band statistics of training scenes, over valid pixels, read once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outsize.data.loader import prefetch
from outsize.data.normalise import BandStatistics
from outsize.errors import DataError, explain
from outsize.progress import Bar
from outsize.raster.read import SceneInfo, SceneReader
from outsize.tiles.window import Window

_SIDE_PX = 1024
_ROUNDING = 1e-12  # share of the squared mean that a variance must pass


def measure_bands(scenes: Sequence[SceneInfo], *, num_threads: int, bar: Bar | None = None) -> BandStatistics:
    """Return mean and standard deviation of each band over the valid pixels of all scenes."""
    count = 0
    total = np.zeros(scenes[0].num_bands)
    total_squares = np.zeros(scenes[0].num_bands)
    for scene in scenes:
        scene_count, sums, squares = _sum_scene(scene, num_threads, bar)
        if scene_count == 0:
            raise DataError(
                explain(
                    f"{scene.path} has no valid pixel",
                    "nodata everywhere",
                    "some image",
                    "leave the scene out",
                )
            )
        count, total, total_squares = count + scene_count, total + sums, total_squares + squares
    return from_sums(count, total, total_squares)


def from_sums(count: int, total: np.ndarray, squares: np.ndarray) -> BandStatistics:
    """Return mean and standard deviation of each band from sums over `count` pixels."""
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    # a constant band carries nothing: leave it at 0 after the mean is taken off. A spread below the digits of
    # float32 is that of rounding, and dividing by it would blow rounding up to the size of a signal
    std = np.where(variance > _ROUNDING * mean**2, np.sqrt(variance), 1.0)
    return BandStatistics(tuple(mean.tolist()), tuple(std.tolist()))


def _sum_scene(scene: SceneInfo, num_threads: int, bar: Bar | None) -> tuple[int, np.ndarray, np.ndarray]:
    windows = windows_of(scene)
    count, sums, squares = 0, np.zeros(scene.num_bands), np.zeros(scene.num_bands)
    with SceneReader(scene) as reader:

        def sum_window(index: int) -> tuple[int, np.ndarray, np.ndarray]:
            raster = reader.read(windows[index])
            # float64: sums of squares of 16-bit values over a scene pass 2**53 in nothing smaller
            values = raster.pixels[:, raster.valid].astype(np.float64)
            return values.shape[1], values.sum(axis=1), (values**2).sum(axis=1)

        for part in prefetch(sum_window, range(len(windows)), num_threads=num_threads, num_ahead=4):
            count, sums, squares = count + part[0], sums + part[1], squares + part[2]
            if bar is not None:
                bar.advance()
    return count, sums, squares


def windows_of(scene: SceneInfo) -> list[Window]:
    """Cut a scene into the windows in which it is read once."""
    return [
        Window(row, col, min(_SIDE_PX, scene.height - row), min(_SIDE_PX, scene.width - col))
        for row in range(0, scene.height, _SIDE_PX)
        for col in range(0, scene.width, _SIDE_PX)
    ]


def num_windows(scenes: Sequence[SceneInfo]) -> int:
    """Count the windows in which scenes are read once, for a progress bar."""
    return sum(-(-scene.height // _SIDE_PX) * -(-scene.width // _SIDE_PX) for scene in scenes)
