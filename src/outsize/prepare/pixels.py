"""Copies the pixels of a scene window by window: every one of them is read once, counted, and perhaps reprojected.

Pixels that hold no measurement become 0 and are marked in a mask inside of the file, whatever said so before: a nodata
value, an alpha band, a mask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain, one_line
from outsize.files.ownership import MADE_BY
from outsize.raster import disk
from outsize.raster.gdal import open_raster
from outsize.raster.georef import NO_PLACE
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tiles.window import Window

_SIDE_PX, _BLOCK_PX = 2048, 512
Read = Callable[[Window], tuple[NDArray[Any], NDArray[np.bool_] | None]]  # None: all are valid


def copy_scene(info: SceneInfo, target: Path) -> dict[str, Any]:
    """Write the pixels of a scene as a plain tiled GeoTIFF, and return their statistics."""
    place: dict[str, Any] = {"height": info.height, "width": info.width}
    if info.georef != NO_PLACE:
        place["transform"] = _affine(info.georef.transform)
    if info.georef.crs_wkt is not None:
        place["crs"] = info.georef.crs_wkt
    with SceneReader(info) as reader:

        def read(window: Window) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
            raster = reader.read(window)
            return raster.pixels, None if info.always_valid else raster.valid

        return _write(target, read, place, info.dtype, info.band_names)


def warp_scene(source: Path, crs: str, target: Path, *, resampling: str) -> dict[str, Any]:
    """Write a copied scene again in another coordinate system, and return the statistics of its pixels."""
    from rasterio.enums import Resampling
    from rasterio.errors import CRSError, RasterioError
    from rasterio.vrt import WarpedVRT

    with open_raster(os.fspath(source), ("GTiff",)) as opened:
        bands = list(opened.indexes)
        try:
            with WarpedVRT(opened, crs=crs, resampling=Resampling[resampling], add_alpha=True) as warped:

                def read(window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
                    there = warped.read(window=_place(window))
                    valid = there[-1] > 0
                    return np.where(valid, there[: len(bands)], 0).astype(there.dtype), valid

                place = {key: getattr(warped, key) for key in ("height", "width", "transform", "crs")}
                names = tuple(name or "" for name in opened.descriptions)
                return _write(target, read, place, opened.dtypes[0], names)
        except (RasterioError, CRSError) as error:
            need, remedy = "a place that this system reaches", "check prepare.crs"
            raise DataError(explain(f"cannot reproject to {crs}", one_line(error), need, remedy)) from error


def windows_of(height: int, width: int) -> Iterator[Window]:
    """Yield windows that cover a scene, whole blocks of it each."""
    for row in range(0, height, _SIDE_PX):
        for col in range(0, width, _SIDE_PX):
            yield Window(row, col, min(_SIDE_PX, height - row), min(_SIDE_PX, width - col))


def _write(
    target: Path, read: Read, place: dict[str, Any], dtype: str, names: tuple[str, ...]
) -> dict[str, Any]:
    import rasterio
    from rasterio.errors import RasterioError

    height, width = place["height"], place["width"]
    profile = {"driver": "GTiff", "dtype": dtype, "count": len(names), "bigtiff": "if_safer", **place}
    if min(height, width) >= _BLOCK_PX:
        profile |= {"tiled": True, "blockxsize": _BLOCK_PX, "blockysize": _BLOCK_PX}
    sums = _Sums(len(names))
    disk.make_folder(target.parent)
    disk.need_space(target.parent, height * width * len(names) * np.dtype(dtype).itemsize, target.name)
    with disk.replacing(target) as temporary, rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        try:
            with rasterio.open(temporary, "w", **profile) as out:
                out.update_tags(TIFFTAG_SOFTWARE=MADE_BY)
                if any(names):
                    out.descriptions = [name or None for name in names]
                for window in windows_of(height, width):
                    pixels, valid = read(window)
                    out.write(pixels, window=_place(window))
                    if valid is not None:
                        out.write_mask(valid, window=_place(window))
                    sums.add(pixels, valid)
        except RasterioError as error:
            raise disk.incomplete(target, one_line(error.__cause__ or error)) from error
    return sums.as_dict(height * width)


@dataclass
class _Sums:
    """What adds up over the windows of a scene."""

    num_bands: int
    num_valid: int = 0
    total: NDArray[np.float64] = field(init=False)
    squares: NDArray[np.float64] = field(init=False)
    least: NDArray[np.float64] = field(init=False)
    most: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.total, self.squares = np.zeros(self.num_bands), np.zeros(self.num_bands)
        self.least, self.most = np.full(self.num_bands, np.inf), np.full(self.num_bands, -np.inf)

    def add(self, pixels: NDArray[Any], valid: NDArray[np.bool_] | None) -> None:
        """Count the valid pixels of a window."""
        num = pixels[0].size if valid is None else int(valid.sum())
        self.num_valid += num
        for band, values in enumerate(pixels if num else ()):
            kept = (values if valid is None else values[valid]).astype(np.float64, copy=False).ravel()
            self.total[band] += kept.sum()
            self.squares[band] += kept @ kept
            self.least[band] = min(self.least[band], kept.min())
            self.most[band] = max(self.most[band], kept.max())

    def as_dict(self, num_px: int) -> dict[str, Any]:
        """Return the share of valid pixels, and mean, spread, least and most of each band; without any, no figures."""
        figures: dict[str, Any] = {"pixels": num_px, "valid": self.num_valid}
        if self.num_valid:
            mean = self.total / self.num_valid
            std = np.sqrt(np.maximum(self.squares / self.num_valid - mean**2, 0.0))
            figures |= {"mean": mean.tolist(), "std": std.tolist()}
            figures |= {"min": self.least.tolist(), "max": self.most.tolist()}
        return figures


def _place(window: Window) -> Any:
    from rasterio.windows import Window as Place

    return Place(window.col, window.row, window.width, window.height)


def _affine(transform: tuple[float, ...]) -> Any:
    from rasterio import Affine

    return Affine(*transform)
