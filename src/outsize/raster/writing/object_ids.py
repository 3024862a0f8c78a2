"""Writes a raster of object ids on the scene's grid, strip by strip: 0 is no object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.files.ownership import MADE_BY
from outsize.raster import disk
from outsize.raster.georef import NO_PLACE
from outsize.raster.reading.scene import SceneInfo, one_line
from outsize.raster.vectors.object_shapes import Masked
from outsize.tiles.window import Window

_BLOCK_PX = 512  # of the file, and rows of a strip


def write_ids(target: Path, objects: Sequence[Masked], info: SceneInfo) -> None:
    """Number each pixel by its object, from 1 in the order given; where objects overlap the surer one counts."""
    import rasterio
    from rasterio.errors import RasterioError
    from rasterio.windows import Window as Place

    disk.make_folder(target.parent)
    rows = sorted(range(len(objects)), key=lambda index: objects[index].window.row)
    with disk.replacing(target) as partial:
        try:
            with rasterio.open(partial, "w", **_form(info)) as file:
                file.update_tags(TIFFTAG_SOFTWARE=MADE_BY)
                open_now: list[int] = []
                for top in range(0, info.height, _BLOCK_PX):
                    strip = Window(top, 0, min(_BLOCK_PX, info.height - top), info.width)
                    while rows and objects[rows[0]].window.row < strip.row_end:
                        open_now.append(rows.pop(0))
                    open_now = [index for index in open_now if objects[index].window.row_end > top]
                    pixels = _burn(objects, open_now, strip)
                    file.write(pixels, 1, window=Place(0, top, strip.width, strip.height))
        except RasterioError as error:
            raise disk.incomplete(target, one_line(error.__cause__ or error)) from error


def _burn(objects: Sequence[Masked], indices: Sequence[int], strip: Window) -> NDArray[np.int32]:
    pixels = np.zeros((strip.height, strip.width), np.int32)
    for index in sorted(indices, key=lambda each: (objects[each].score, -each)):
        window = objects[index].window
        common = window.intersect(strip)
        part = objects[index].mask[common.within(window).slices]
        pixels[common.within(strip).slices][part] = index + 1
    return pixels


def _form(info: SceneInfo) -> dict[str, Any]:
    from rasterio import Affine
    from rasterio.crs import CRS

    form: dict[str, Any] = {"driver": "GTiff", "height": info.height, "width": info.width, "count": 1}
    form |= {"dtype": "int32", "nodata": 0, "compress": "DEFLATE", "predictor": 2, "bigtiff": "IF_SAFER"}
    if min(info.height, info.width) >= _BLOCK_PX:
        form |= {"tiled": True, "blockxsize": _BLOCK_PX, "blockysize": _BLOCK_PX}
    if info.georef != NO_PLACE:  # a world file alone gives a grid without a coordinate system
        form["transform"] = Affine(*info.georef.transform)
    if info.georef.crs_wkt:
        form["crs"] = CRS.from_wkt(info.georef.crs_wkt)
    return form
