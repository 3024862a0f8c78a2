"""Joins a scene's single-band files, also of different resolution, into one scene on the grid of the finest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

from outsize.errors import DataError, explain
from outsize.raster.gdal import GDAL_TYPES
from outsize.raster.georef import same_crs
from outsize.raster.reading.info import SceneInfo
from outsize.raster.reading.scene import describe

_MAX_SHIFT_PX = 0.5  # of the finest band, by which corners of the bands may differ
_BLOCK_PX = 256


def stack_bands(path: Path, files: Mapping[str, Path], *, allow_references: bool = False) -> SceneInfo:
    """Describe one scene named `path` made of `files` (band name -> file), coarser bands made finer bilinearly.

    The scene is a VRT that lives in memory only: its text is what GDAL opens.
    """
    bands = {name: describe(file, allow_references=allow_references) for name, file in files.items()}
    finest = min(bands.values(), key=lambda band: -band.num_px)
    for name, band in bands.items():
        _refuse_misfit(name, band, finest)
    source = _as_vrt(bands, finest)
    return replace(
        finest,
        path=path,
        num_bands=len(bands),
        band_names=tuple(bands),
        block=(_BLOCK_PX, _BLOCK_PX),
        driver="VRT",
        source=source,
        band_indexes=tuple(range(1, len(bands) + 1)),
        is_compressed=False,
    )


def _refuse_misfit(name: str, band: SceneInfo, finest: SceneInfo) -> None:
    """Refuse a band that cannot lie on the grid of the finest one."""
    wanted = f"as {finest.path.name}"
    if band.num_bands != 1 or band.alpha_index is not None or band.has_mask or not band.driver:
        kind = f"{band.num_bands} bands" + (", a picture" if not band.driver else "")
        kind += " and a mask" if band.has_mask or band.alpha_index is not None else ""
        raise _misfit(name, band, kind, "a raster of one band", "give one file per band, nodata as a value")
    if band.dtype != finest.dtype:
        raise _misfit(name, band, band.dtype, f"{finest.dtype} {wanted}", "convert it (gdal_translate -ot)")
    if repr(band.nodata) != repr(finest.nodata):
        remedy = "give all bands one nodata value (gdal_edit.py -a_nodata)"
        raise _misfit(name, band, f"nodata {band.nodata}", f"nodata {finest.nodata} {wanted}", remedy)
    if not same_crs(band.georef.crs_wkt, finest.georef.crs_wkt):
        remedy = "reproject it (gdalwarp -t_srs)"
        raise _misfit(name, band, "another coordinate system", f"the same {wanted}", remedy)
    shift_px = band.largest_shift_px(finest)
    if shift_px > _MAX_SHIFT_PX:
        remedy = "cut all bands to one extent (gdalwarp -te)"
        raise _misfit(name, band, f"corners {shift_px:.1f} px away", f"the same extent {wanted}", remedy)


def _misfit(name: str, band: SceneInfo, found: str, needed: str, remedy: str) -> DataError:
    return DataError(explain(f"band {name} of a stack does not fit: {band.path}", found, needed, remedy))


def _as_vrt(bands: Mapping[str, SceneInfo], grid: SceneInfo) -> str:
    lines = [_band_xml(number, name, band, grid) for number, (name, band) in enumerate(bands.items(), 1)]
    a, b, c, d, e, f = grid.georef.transform
    place = ", ".join(repr(value) for value in (c, a, b, f, d, e))
    crs = f"<SRS>{escape(grid.georef.crs_wkt)}</SRS>" if grid.georef.crs_wkt else ""
    return (
        f'<VRTDataset rasterXSize="{grid.width}" rasterYSize="{grid.height}">{crs}'
        f"<GeoTransform>{place}</GeoTransform>{''.join(lines)}</VRTDataset>"
    )


def _band_xml(number: int, name: str, band: SceneInfo, grid: SceneInfo) -> str:
    # A source that knows its nodata value leaves it out of the mean of neighbours.
    kind = "SimpleSource" if band.nodata is None else "ComplexSource"
    nodata = "" if band.nodata is None else f"{band.nodata:.17g}"
    kind_of_pixels = GDAL_TYPES[band.dtype]
    rows, cols = band.block
    return (
        f'<VRTRasterBand dataType="{kind_of_pixels}" band="{number}" '
        f'blockXSize="{_BLOCK_PX}" blockYSize="{_BLOCK_PX}">'
        f"<Description>{escape(name)}</Description>"
        + (f"<NoDataValue>{nodata}</NoDataValue>" if nodata else "")
        + f'<{kind} resampling="bilinear">'
        f'<SourceFilename relativeToVRT="0">{escape(band.source)}</SourceFilename>'
        f"<SourceBand>{band.band_indexes[0]}</SourceBand>"
        f'<SourceProperties RasterXSize="{band.width}" RasterYSize="{band.height}" '
        f'DataType="{kind_of_pixels}" BlockXSize="{cols}" BlockYSize="{rows}"/>'
        f'<SrcRect xOff="0" yOff="0" xSize="{band.width}" ySize="{band.height}"/>'
        f'<DstRect xOff="0" yOff="0" xSize="{grid.width}" ySize="{grid.height}"/>'
        + (f"<NODATA>{nodata}</NODATA>" if nodata else "")
        + f"</{kind}></VRTRasterBand>"
    )
