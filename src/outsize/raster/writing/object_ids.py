"""Writes a raster of object ids on the scene's grid, strip by strip: 0 is no object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.files.ownership import MADE_BY
from outsize.raster.gdal import write_on_grid
from outsize.raster.reading import SceneInfo
from outsize.raster.vectors import Masked
from outsize.tiles.window import Window

_BLOCK_PX = 512  # of the file, and rows of a strip


def write_ids(target: Path, objects: Sequence[Masked], info: SceneInfo) -> None:
    """Number each pixel by its object, from 1 in the order given; where objects overlap the surer one counts."""
    rows = sorted(range(len(objects)), key=lambda index: objects[index].window.row)
    open_now: list[int] = []

    def make(strip: Window) -> NDArray[np.int32]:
        while rows and objects[rows[0]].window.row < strip.row_end:
            open_now.append(rows.pop(0))
        open_now[:] = [index for index in open_now if objects[index].window.row_end > strip.row]
        return _burn(objects, open_now, strip)

    tops = range(0, info.height, _BLOCK_PX)
    strips = (Window(top, 0, _BLOCK_PX, info.width).intersect(info.window) for top in tops)
    grid, tags = (info.height, info.width, info.georef), {"TIFFTAG_SOFTWARE": MADE_BY}
    form = {"dtype": "int32", "nodata": 0, "predictor": 2}
    write_on_grid(target, grid, strips, make, tags=tags, block_px=_BLOCK_PX, **form)


def _burn(objects: Sequence[Masked], indices: Sequence[int], strip: Window) -> NDArray[np.int32]:
    pixels = np.zeros((strip.height, strip.width), np.int32)
    for index in sorted(indices, key=lambda each: (objects[each].score, -each)):
        window = objects[index].window
        common = window.intersect(strip)
        part = objects[index].mask[common.within(window).slices]
        pixels[common.within(strip).slices][part] = index + 1
    return pixels
