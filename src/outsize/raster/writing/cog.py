"""Turns a finished raster into a Cloud-Optimized GeoTIFF: overviews, colours, names, nodata, same grid."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from outsize.errors import DataError, one_line
from outsize.files.ownership import MADE_BY
from outsize.raster import disk
from outsize.raster.gdal import GDAL_TYPES, open_raster

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

Colour = tuple[int, int, int]
Resampling = Literal["mode", "nearest", "average"]

_OVERVIEW_SHARE = 1.35  # pixels, and a third of them again in overviews, should nothing compress


def make_cog(
    source: Path,
    target: Path,
    *,
    resampling: Resampling,
    colours: Mapping[int, Colour] | None = None,
    nodata: float | None = None,
    band_names: tuple[str, ...] = (),
    tags: Mapping[str, str] | None = None,
    num_threads: str = "ALL_CPUS",
) -> None:
    """Copy `source` to `target` as a COG; the file appears under its name only when it is complete.

    Overviews of class ids want "mode" or "nearest", of measurements "average". `colours` need a uint8 raster.
    """
    with open_raster(os.fspath(source)) as plain:
        is_measured = plain.dtypes[0] == "float32"
        view = _dress(plain, source, colours or {}, nodata, band_names, tags or {})
    copy_as_cog(view, target, resampling=resampling, is_measured=is_measured, num_threads=num_threads)


def copy_as_cog(
    source: str, target: Path, *, resampling: Resampling, is_measured: bool, num_threads: str
) -> None:
    """Copy a raster or a VRT of ours to `target` as a COG, with its mask; what is not measured are class ids."""
    options = {
        "COMPRESS": "DEFLATE" if is_measured else "LZW",
        "PREDICTOR": "YES" if is_measured else "NO",  # neighbouring class ids differ by no small amount
        "BLOCKSIZE": "512",
        "OVERVIEW_RESAMPLING": resampling.upper(),
        "BIGTIFF": "IF_SAFER",
        "NUM_THREADS": num_threads,
    }
    disk.make_folder(target.parent)
    with open_raster(source, ("VRT", "GTiff")) as plain:
        num_bytes = plain.width * plain.height * plain.count * np.dtype(plain.dtypes[0]).itemsize
        disk.need_space(target.parent, int(num_bytes * _OVERVIEW_SHARE), target.name)
        _copy(plain, target, options)


def _copy(plain: DatasetReader, target: Path, options: Mapping[str, str]) -> None:
    from rasterio import shutil as raster_shutil
    from rasterio._err import CPLE_BaseError  # raised by copy as it is, and not to be had elsewhere
    from rasterio.errors import RasterioError

    with disk.replacing(target) as partial:
        try:
            raster_shutil.copy(plain, partial, driver="COG", **options)
        except (
            RasterioError,
            CPLE_BaseError,
            SystemError,
        ) as error:  # SystemError: a failure GDAL does not name
            raise disk.incomplete(target, one_line(error.__cause__ or error)) from error
        _refuse_incomplete(partial, target)


def _refuse_incomplete(partial: Path, target: Path) -> None:
    """Look for the end of the last block, which a COG repeats in 4 bytes: GDAL is silent when the disk is full."""
    try:
        written = open_raster(os.fspath(partial))
    except DataError as error:
        raise disk.incomplete(target, "a file that cannot be opened again") from error
    with written:
        rows, cols = written.block_shapes[-1]
        place = f"{(written.width - 1) // cols}_{(written.height - 1) // rows}"
        begin, size = (
            int(written.get_tag_item(f"BLOCK_{what}_{place}", "TIFF", bidx=written.count) or 0)
            for what in ("OFFSET", "SIZE")
        )
    have_bytes = partial.stat().st_size
    if size == 0 or begin + size + 4 > have_bytes:
        raise disk.incomplete(target, f"only {have_bytes:,} of {begin + size + 4:,} bytes written")


def _dress(
    plain: DatasetReader,
    source: Path,
    colours: Mapping[int, Colour],
    nodata: float | None,
    names: tuple[str, ...],
    tags: Mapping[str, str],
) -> str:
    """Describe `source` with its clothes on as a VRT: GDAL's copy takes over whatever the VRT says."""
    bands = []
    for index in plain.indexes:
        name = names[index - 1] if names else plain.descriptions[index - 1] or ""
        value = nodata if nodata is not None else plain.nodata
        bands.append(
            f'<VRTRasterBand dataType="{GDAL_TYPES[plain.dtypes[index - 1]]}" band="{index}">'
            + (f"<Description>{escape(name)}</Description>" if name else "")
            + (f"<NoDataValue>{value:.17g}</NoDataValue>" if value is not None else "")
            + (_colour_table(colours) if colours else "<ColorInterp>Gray</ColorInterp>" if index == 1 else "")
            + f'<SimpleSource><SourceFilename relativeToVRT="0">{escape(os.fspath(source.resolve()))}'
            f"</SourceFilename><SourceBand>{index}</SourceBand></SimpleSource></VRTRasterBand>"
        )
    metadata_of = {"TIFFTAG_SOFTWARE": MADE_BY, **tags}
    metadata = "".join(f"<MDI key={quoteattr(key)}>{escape(text)}</MDI>" for key, text in metadata_of.items())
    place = ", ".join(repr(value) for value in plain.transform.to_gdal())
    crs = f"<SRS>{escape(plain.crs.to_wkt())}</SRS>" if plain.crs else ""
    transform = "" if plain.transform.is_identity else f"<GeoTransform>{place}</GeoTransform>"
    return (
        f'<VRTDataset rasterXSize="{plain.width}" rasterYSize="{plain.height}">{crs}{transform}'
        f"<Metadata>{metadata}</Metadata>{''.join(bands)}</VRTDataset>"
    )


def _colour_table(colours: Mapping[int, Colour]) -> str:
    entries = [(0, 0, 0, 0)] * 256
    for value, (red, green, blue) in colours.items():
        entries[value] = (red, green, blue, 255)
    rows = "".join(f'<Entry c1="{r}" c2="{g}" c3="{b}" c4="{a}"/>' for r, g, b, a in entries)
    return f"<ColorInterp>Palette</ColorInterp><ColorTable>{rows}</ColorTable>"
