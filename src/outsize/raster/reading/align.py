"""Says whether two rasters share a grid, and brings labels of another coordinate system onto their scene's grid."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outsize.errors import DataError, explain
from outsize.raster import disk
from outsize.raster.reading.scene import SceneInfo, one_line, open_raster
from outsize.tiles.window import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SHIFT_PX = 0.1  # by which corners of labels may miss those of their scene: rounding, no more
_MAX_RATIO = 1.5  # of pixel sizes across coordinate systems, above which the resolution is another one
_SIDE_PX = 1024
KEY_TAG = "OUTSIZE_KEY"


def same_crs(first_wkt: str | None, second_wkt: str | None) -> bool:
    """Say whether two coordinate systems are one."""
    from rasterio.crs import CRS

    if first_wkt == second_wkt or first_wkt is None or second_wkt is None:
        return first_wkt == second_wkt
    return bool(CRS.from_wkt(first_wkt) == CRS.from_wkt(second_wkt))


def largest_shift_px(one: SceneInfo, grid: SceneInfo) -> float:
    """Return by how much corners of two rasters of one coordinate system differ, in pixels of `grid`."""
    distances: list[float] = []
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x, y = one.georef.ground(one.height * down, one.width * right)
        row, col = pixel_of(grid, x, y)
        distances.append(max(abs(row - grid.height * down), abs(col - grid.width * right)))
    return max(distances)


def pixel_of(info: SceneInfo, x: Any, y: Any) -> tuple[Any, Any]:
    """Return row and column of points on the ground; numbers or arrays."""
    a, b, c, d, e, f = info.georef.transform
    det = a * e - b * d
    return (a * (y - f) - d * (x - c)) / det, (e * (x - c) - b * (y - f)) / det


def fits(labels: SceneInfo, scene: SceneInfo) -> bool:
    """Say whether labels lie on their scene's grid; refuse those of its coordinate system that do not.

    False means: another coordinate system. Where one of the two has none, only the size can be compared.
    """
    has_places = labels.georef.crs_wkt is not None and scene.georef.crs_wkt is not None
    if has_places and not same_crs(labels.georef.crs_wkt, scene.georef.crs_wkt):
        return False
    if has_places:
        _refuse_resolution(labels, scene, _ratio(labels.georef.resolution, scene.georef.resolution), 1.001)
    if (labels.height, labels.width) != (scene.height, scene.width):
        raise DataError(
            explain(
                f"labels {labels.path} do not fit their image {scene.path}",
                f"{labels.height} x {labels.width} px",
                f"{scene.height} x {scene.width} px",
                "label each pixel of the image, or cut both to one extent (gdalwarp -te)",
            )
        )
    shift_px = largest_shift_px(labels, scene) if has_places else 0.0
    if shift_px >= max(scene.height, scene.width):
        raise misses(labels.path, scene.path, f"labels {shift_px:,.0f} px away")
    if shift_px > MAX_SHIFT_PX:
        raise DataError(
            explain(
                f"labels {labels.path} do not lie on the grid of {scene.path}",
                f"corners {shift_px:.2f} px away",
                f"at most {MAX_SHIFT_PX} px",
                "bring them onto it (gdalwarp -r near -te ... -ts ...)",
            )
        )
    return True


def misses(labels: Path, scene: Path, found: str) -> DataError:
    """Say that labels lie elsewhere than their scene."""
    remedy = "check that they belong together and that both state the right coordinate system"
    return DataError(explain(f"labels {labels} miss the scene {scene}", found, "labels on the scene", remedy))


def warp_labels(labels: SceneInfo, scene: SceneInfo, target: Path, *, ignore_value: int, key: str) -> None:
    """Write labels of another coordinate system onto the scene's grid, each pixel from its nearest."""
    import rasterio
    from rasterio.errors import RasterioError
    from rasterio.vrt import WarpedVRT

    _refuse_resolution(labels, scene, _ratio_across(labels, scene), _MAX_RATIO)
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
        raise misses(labels.path, scene.path, "no labelled pixel on it")


def windows_over(scene: SceneInfo) -> Iterator[Window]:
    """Cut a scene into the windows in which labels are made."""
    for row in range(0, scene.height, _SIDE_PX):
        for col in range(0, scene.width, _SIDE_PX):
            yield Window(row, col, _SIDE_PX, _SIDE_PX).intersect(scene.window)


def write_labels(target: Path, scene: SceneInfo, ignore_value: int, key: str, make: Any) -> None:
    """Write make(window) as a label raster on the scene's grid; `key` says what it was made of."""
    import rasterio
    from rasterio.errors import RasterioError

    disk.make_folder(target.parent)
    crs = scene.georef.crs_wkt
    profile = {"driver": "GTiff", "dtype": "uint8", "count": 1, "nodata": ignore_value}
    profile |= {"height": scene.height, "width": scene.width, "compress": "deflate", "bigtiff": "if_safer"}
    if min(scene.height, scene.width) >= 256:
        profile |= {"tiled": True, "blockxsize": 256, "blockysize": 256}
    if crs is not None:
        profile |= {"crs": rasterio.crs.CRS.from_wkt(crs)}
        profile |= {"transform": rasterio.Affine(*scene.georef.transform)}
    with disk.replacing(target) as partial:
        try:
            with rasterio.open(partial, "w", **profile) as out:
                out.update_tags(**{KEY_TAG: key})
                for window in windows_over(scene):
                    there = rasterio.windows.Window(window.col, window.row, window.width, window.height)
                    out.write(make(window), 1, window=there)
        except RasterioError as error:
            raise disk.incomplete(target, one_line(error)) from error


def is_made_of(target: Path, key: str) -> bool:
    """Say whether a label raster is there and was made of what `key` names."""
    if not target.is_file():
        return False
    with open_raster(os.fspath(target), ("GTiff",)) as opened:
        return bool(opened.tags().get(KEY_TAG) == key)


def _refuse_resolution(labels: SceneInfo, scene: SceneInfo, ratio: float, limit: float) -> None:
    if not 1 / limit <= ratio <= limit:
        raise DataError(
            explain(
                f"labels {labels.path} have another resolution than {scene.path}",
                f"pixels {ratio:.3g} times as large",
                "one label for each pixel",
                "bring them onto the scene's grid (gdalwarp -r near -tr ... -te ...) and look at the result",
            )
        )


def _ratio(one: tuple[float, float], other: tuple[float, float]) -> float:
    rows, cols = one[0] / other[0], one[1] / other[1]
    return rows if abs(math.log(rows)) > abs(math.log(cols)) else cols


def _ratio_across(labels: SceneInfo, scene: SceneInfo) -> float:
    """Compare the size of pixels across coordinate systems, in the middle of the scene."""
    from pyproj import CRS, Transformer
    from pyproj.exceptions import ProjError

    crs = (scene.georef.crs_wkt or "", labels.georef.crs_wkt or "")
    try:
        there = Transformer.from_crs(CRS.from_wkt(crs[0]), CRS.from_wkt(crs[1]), always_xy=True)
    except ProjError as error:
        found = f"coordinate systems that cannot be brought together ({one_line(error)[:120]})"
        raise misses(labels.path, scene.path, found) from error
    rows = scene.height / 2 + np.array([0.0, 1.0, 0.0])
    cols = scene.width / 2 + np.array([0.0, 0.0, 1.0])
    x, y = scene.georef.ground(rows, cols)  # type: ignore[arg-type]
    row, col = pixel_of(labels, *there.transform(x, y))
    area = abs((row[1] - row[0]) * (col[2] - col[0]) - (row[2] - row[0]) * (col[1] - col[0]))
    if not np.isfinite(area) or area == 0:
        raise misses(labels.path, scene.path, "a place their coordinate system does not reach")
    return float(1 / math.sqrt(area))


def _refuse_range(path: Path, values: NDArray[Any]) -> None:
    if values.size and (values.min() < 0 or values.max() > 255):
        found = f"{values.min()} to {values.max()}"
        raise DataError(
            explain(f"label values out of range in {path}", found, "0 to 255", "renumber the classes")
        )
