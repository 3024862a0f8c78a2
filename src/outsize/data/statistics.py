"""Mean and spread of bands, and the windows in which a scene is read once to sum them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outsize.raster.reading import SceneInfo
from outsize.tiles.window import Window

_SIDE_PX = 1024
_ROUNDING = 1e-12  # share of the squared mean that a variance must pass


@dataclass(frozen=True)
class BandStatistics:
    """Mean and standard deviation of each band over valid training pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def from_sums(count: int, total: np.ndarray, squares: np.ndarray) -> BandStatistics:
    """Return mean and standard deviation of each band from sums over `count` pixels."""
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    # a constant band carries nothing: leave it at 0 after the mean is taken off. A spread below the digits of
    # float32 is that of rounding, and dividing by it would blow rounding up to the size of a signal
    std = np.where(variance > _ROUNDING * mean**2, np.sqrt(variance), 1.0)
    return BandStatistics(tuple(mean.tolist()), tuple(std.tolist()))


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
