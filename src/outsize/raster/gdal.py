"""Opens rasters with GDAL, only as formats that read nothing but themselves, and writes rasters on a scene's grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import DataError, explain, one_line
from outsize.raster import disk
from outsize.raster.georef import NO_PLACE, GeoRef

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rasterio.io import DatasetReader, DatasetWriter

    from outsize.tiles.window import Window

# GDAL is limited to these: it would try 130 others, many of which read what a file names, some over a network. PNG and
# JPEG are read by Pillow, and by GDAL only in a VRT of ours.
OWN_DRIVERS = ("GTiff", "JP2OpenJPEG", "JP2ECW", "JP2KAK", "JP2MrSID", "PNG", "JPEG")

GDAL_TYPES = {"uint8": "Byte", "uint16": "UInt16", "int16": "Int16", "float32": "Float32"}
"""GDAL's names of the types of pixels."""

_LONG_NAME = 300

CACHE_BYTES = 128 * 2**20
"""GDAL's block cache; its default, 5 % of memory, fills up with blocks that are not read again."""


def open_raster(source: str, drivers: tuple[str, ...] | None = OWN_DRIVERS, **options: str) -> DatasetReader:
    """Open a file with GDAL, only as one of `drivers`; None: as any format that GDAL reads, also from elsewhere."""
    import rasterio
    from rasterio.env import set_gdal_config
    from rasterio.errors import RasterioError
    from rasterio.io import DatasetReader

    if "GDAL_CACHEMAX" not in os.environ:
        set_gdal_config("GDAL_CACHEMAX", CACHE_BYTES)  # of the whole process, not of this file
    name = source if len(source) < _LONG_NAME else f"{source[:_LONG_NAME]}..."  # the text of a VRT
    try:
        source.encode()
        # no format above asks a network, nor does what lies beside a file: should one, it gets no answer
        network = {} if drivers is None else {"CPL_VSIL_CURL_ALLOWED_FILENAME": "none"}
        with rasterio.Env(**network):
            # DatasetReader and not rasterio.open: only the former takes several drivers.
            return DatasetReader(
                source, driver=None if drivers is None else list(drivers), sharing=False, **options
            )
    except (RasterioError, UnicodeEncodeError) as error:
        is_name = isinstance(error, UnicodeEncodeError)
        raise DataError(
            explain(
                f"{name} cannot be opened as an image",
                "a name that is no UTF-8" if is_name else one_line(error),
                "a complete GeoTIFF, PNG, JPEG or JPEG 2000",
                "rename it"
                if is_name
                else "copy it again from its source, convert it (gdal_translate), or set data.allow_references "
                "if you trust it",
            )
        ) from error


@contextmanager
def new_geotiff(
    target: Path, grid: tuple[int, int, GeoRef], block_px: int, **profile: Any
) -> Iterator[DatasetWriter]:
    """Open a GeoTIFF on a grid of (height, width, place) to be written; it appears when the block is over.

    `profile` is rasterio's: count, dtype, nodata and how it is compressed.
    """
    import rasterio
    from rasterio.errors import RasterioError

    height, width, georef = grid
    profile = {"compress": "deflate", **profile}
    profile |= {"driver": "GTiff", "height": height, "width": width, "bigtiff": "if_safer"}
    if min(height, width) >= block_px:
        profile |= {"tiled": True, "blockxsize": block_px, "blockysize": block_px}
    if georef != NO_PLACE:  # a world file alone gives a grid without a coordinate system
        profile["transform"] = rasterio.Affine(*georef.transform)
    if georef.crs_wkt is not None:
        profile["crs"] = rasterio.crs.CRS.from_wkt(georef.crs_wkt)
    disk.make_folder(target.parent)
    with disk.replacing(target) as partial:
        try:
            with rasterio.open(partial, "w", **profile) as out:
                yield out
        except RasterioError as error:
            raise disk.incomplete(target, one_line(error.__cause__ or error)) from error


def write_on_grid(
    target: Path,
    grid: tuple[int, int, GeoRef],
    windows: Iterable[Window],
    make: Callable[[Window], NDArray[Any]],
    *,
    tags: Mapping[str, str],
    block_px: int,
    **profile: Any,
) -> None:
    """Write make(window) of all windows as a GeoTIFF of one band on a grid of (height, width, place).

    The file appears when it is complete. `profile` is rasterio's: dtype, nodata and how it is compressed.
    """
    from rasterio.windows import Window as Place

    with new_geotiff(target, grid, block_px, count=1, **profile) as out:
        out.update_tags(**tags)
        for window in windows:
            place = Place(window.col, window.row, window.width, window.height)
            out.write(make(window), 1, window=place)
