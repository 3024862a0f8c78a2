"""Writes label rasters on the grid of their scene, each with a key that says what it was made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.raster.gdal import open_raster, write_on_grid
from outsize.raster.reading import SceneInfo
from outsize.tiles.window import Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SIDE_PX = 1024
KEY_TAG = "OUTSIZE_KEY"


def write_labels(
    target: Path, scene: SceneInfo, ignore_value: int, key: str, make: Callable[[Window], NDArray[np.uint8]]
) -> None:
    """Write make(window) as a label raster on the scene's grid, unless one made of the same `key` is there."""
    if is_made_of(target, key):
        return
    windows = (
        Window(row, col, _SIDE_PX, _SIDE_PX).intersect(scene.window)
        for row in range(0, scene.height, _SIDE_PX)
        for col in range(0, scene.width, _SIDE_PX)
    )
    grid, tags = (scene.height, scene.width, scene.georef), {KEY_TAG: key}
    write_on_grid(target, grid, windows, make, tags=tags, block_px=256, dtype="uint8", nodata=ignore_value)


def is_made_of(target: Path, key: str) -> bool:
    """Say whether a label raster is there and was made of what `key` names."""
    if not target.is_file():
        return False
    with open_raster(os.fspath(target), ("GTiff",)) as opened:
        return bool(opened.tags().get(KEY_TAG) == key)
