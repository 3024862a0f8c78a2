"""Writes grids of numbers, one below the other as the bands of a GeoTIFF, each with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from outsize.raster.gdal import new_geotiff
from outsize.raster.georef import GeoRef
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
    num, height, width = grids.shape
    profile: dict[str, Any] = {"dtype": grids.dtype.name, "nodata": nodata, "interleave": "band"}
    profile |= {"zlevel": 1, "predictor": 3 if grids.dtype.kind == "f" else 2}
    with new_geotiff(target, (height, width, georef), _BLOCK_PX, count=num, **profile) as out:
        out.update_tags(**{KEY_TAG: key, **(tags or {})})
        out.descriptions = tuple(names)
        out.units = (unit,) * num if unit else out.units
        out.write(grids)
