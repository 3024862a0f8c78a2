"""Writes grids of numbers, one below the other as the bands of a GeoTIFF, each with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from outsize.errors import one_line
from outsize.raster import disk
from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.raster.labels import KEY_TAG

_BLOCK_PX = 256


def write_grids(
    target: Path,
    georef: GeoRef,
    grids: NDArray[Any],
    names: Sequence[str],
    *,
    key: str = "",
    tags: Mapping[str, str] | None = None,
    unit: str = "",
    nodata: float | None = None,
) -> None:
    """Write grids (band, row, column); the file appears when it is complete. `key` says what it was made of."""
    import rasterio
    from rasterio.errors import RasterioError

    num, height, width = grids.shape
    profile: dict[str, Any] = {"driver": "GTiff", "count": num, "height": height, "width": width}
    profile |= {"dtype": grids.dtype.name, "nodata": nodata, "interleave": "band", "bigtiff": "if_safer"}
    profile |= {"compress": "deflate", "zlevel": 1, "predictor": 3 if grids.dtype.kind == "f" else 2}
    if min(height, width) >= _BLOCK_PX:
        profile |= {"tiled": True, "blockxsize": _BLOCK_PX, "blockysize": _BLOCK_PX}
    if georef != NO_PLACE:
        profile["transform"] = rasterio.Affine(*georef.transform)
    if georef.crs_wkt is not None:
        profile["crs"] = rasterio.crs.CRS.from_wkt(georef.crs_wkt)
    disk.make_folder(target.parent)
    with disk.replacing(target) as partial:
        try:
            with rasterio.open(partial, "w", **profile) as out:
                out.update_tags(**{KEY_TAG: key, **(tags or {})})
                out.descriptions = tuple(names)
                out.units = (unit,) * num if unit else out.units
                out.write(grids)
        except RasterioError as error:
            raise disk.incomplete(target, one_line(error.__cause__ or error)) from error
