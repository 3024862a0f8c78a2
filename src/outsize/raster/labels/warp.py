"""Brings labels of another coordinate system onto their scene's grid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outsize.errors import DataError, explain, one_line
from outsize.raster.gdal import open_raster
from outsize.raster.labels.grid import not_on_scene, refuse_resolution
from outsize.raster.labels.write import is_made_of, write_labels
from outsize.raster.reading import SceneInfo
from outsize.tiles.window import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_RATIO = 1.5  # of pixel sizes across coordinate systems, above which the resolution is another one


def warp_labels(labels: SceneInfo, scene: SceneInfo, target: Path, *, ignore_value: int, key: str) -> None:
    """Write labels of another coordinate system onto the scene's grid, each pixel from its nearest.

    Where labels made of the same `key` are there, they stay.
    """
    if is_made_of(target, key):
        return
    import rasterio
    from rasterio.errors import RasterioError
    from rasterio.vrt import WarpedVRT

    refuse_resolution(labels, scene, _ratio_across(labels, scene), _MAX_RATIO)
    # One nodata value on both sides: GDAL changes a valid pixel that has the nodata value of the result.
    nodata = ignore_value if labels.nodata is None else labels.nodata
    place = {
        "crs": rasterio.crs.CRS.from_wkt(scene.georef.crs_wkt),
        "transform": rasterio.Affine(*scene.georef.transform),
        "height": scene.height,
        "width": scene.width,
    }
    num_labelled = 0
    with open_raster(labels.source, (labels.driver,)) as opened:
        options = {"src_nodata": nodata, "nodata": nodata, "resampling": rasterio.enums.Resampling.nearest}
        try:
            with WarpedVRT(opened, **place, **options) as warped:

                def make(window: Window) -> NDArray[np.uint8]:
                    nonlocal num_labelled
                    there = rasterio.windows.Window(window.col, window.row, window.width, window.height)
                    values = warped.read(labels.band_indexes[0], window=there)
                    known = values != np.array(nodata).astype(values.dtype)
                    _refuse_range(labels.path, values[known])
                    num_labelled += int(known.sum())
                    return np.where(known, values, ignore_value).astype(np.uint8)

                write_labels(target, scene, ignore_value, key, make)
        except RasterioError as error:
            remedy = "reproject them by hand (gdalwarp -r near)"
            raise DataError(
                explain(
                    f"labels {labels.path} cannot be reprojected",
                    one_line(error),
                    "a place on the scene",
                    remedy,
                )
            ) from error
    if num_labelled == 0:
        target.unlink()
        raise not_on_scene(labels.path, scene.path, "no labelled pixel on it")


def _ratio_across(labels: SceneInfo, scene: SceneInfo) -> float:
    """Compare the size of pixels across coordinate systems, in the middle of the scene."""
    from pyproj import CRS, Transformer
    from pyproj.exceptions import ProjError

    crs = (scene.georef.crs_wkt or "", labels.georef.crs_wkt or "")
    try:
        there = Transformer.from_crs(CRS.from_wkt(crs[0]), CRS.from_wkt(crs[1]), always_xy=True)
    except ProjError as error:
        found = f"coordinate systems that cannot be brought together ({one_line(error)[:120]})"
        raise not_on_scene(labels.path, scene.path, found) from error
    rows = scene.height / 2 + np.array([0.0, 1.0, 0.0])
    cols = scene.width / 2 + np.array([0.0, 0.0, 1.0])
    x, y = scene.georef.ground(rows, cols)
    row, col = labels.georef.pixel(*there.transform(x, y))
    area = abs((row[1] - row[0]) * (col[2] - col[0]) - (row[2] - row[0]) * (col[1] - col[0]))
    if not np.isfinite(area) or area == 0:
        raise not_on_scene(labels.path, scene.path, "a place their coordinate system does not reach")
    return float(1 / math.sqrt(area))


def _refuse_range(path: Path, values: NDArray[Any]) -> None:
    if values.size and (values.min() < 0 or values.max() > 255):
        found = f"{values.min()} to {values.max()}"
        raise DataError(
            explain(f"label values out of range in {path}", found, "0 to 255", "renumber the classes")
        )
