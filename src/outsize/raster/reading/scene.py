"""Opens a scene, checks all that can be checked without its pixels, and says what it is."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outsize.errors import DataError, explain, one_line
from outsize.files.plain import is_address, is_plain
from outsize.raster.gdal import OWN_DRIVERS, open_raster
from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.raster.reading import picture, safety
from outsize.raster.reading.info import SceneInfo
from outsize.raster.reading.mosaic import remade_vrt
from outsize.raster.reading.tiffs import refuse_cut_tiff
from outsize.raster.reading.worldfile import find_projection, world_files

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

DTYPES = ("uint8", "uint16", "int16", "float32")
"""Pixel types that are read; others lose precision on the way to a network or hold no measurements."""

_ID_DTYPES = ("uint8", "uint16", "int16", "int32", "uint32", "int64", "uint64")

_MAX_ALPHA_VALUES = 32
_OF_TIFF = {"complex_int16": "complex64"}  # what numpy does not know


def describe(
    path: Path | str, *, allow_references: bool = False, alpha_is_data: bool = False, ids: bool = False
) -> SceneInfo:
    """Open a scene, check everything that can be checked without reading its pixels, and say what it is.

    Where its pixels are `ids` of objects, they may be whole numbers of any size.

    A band marked as alpha says which pixels are valid and is no band of the scene, unless it bears a name
    other than alpha, or `alpha_is_data`: many tools mark the fourth of red, green, blue, near infrared so.
    """
    name = os.fspath(path)
    if is_address(name):
        if not allow_references:
            safety.refuse_address(name)
        return _describe_raster(_Opening(Path(name), name, None), alpha_is_data, ids)
    path = Path(path)
    _refuse_no_file(path)
    if picture.is_picture(path):
        with picture.Picture(path) as opened:
            return opened.describe()
    return _describe_raster(_opening(path, allow_references), alpha_is_data, ids)


@dataclass(frozen=True)
class _Opening:
    """How GDAL is to open a scene: what it is given, and as which formats; None: as any."""

    path: Path
    source: str
    drivers: tuple[str, ...] | None


def _opening(path: Path, allow_references: bool) -> _Opening:
    source = os.fspath(path.absolute())  # nothing in front of which GDAL takes for the name of a driver
    if allow_references:
        return _Opening(path, source, None)
    if path.suffix.lower() == ".vrt" or safety.begins_as_xml(path):
        return _Opening(path, remade_vrt(path, check_image), ("VRT",))
    check_beside(path)
    return _Opening(path, source, OWN_DRIVERS)


def check_image(path: Path) -> None:
    """Refuse what is no image of its own, or lies beside one; for what GDAL opens by itself."""
    check_beside(path)
    open_raster(os.fspath(path.absolute())).close()


def check_beside(path: Path) -> None:
    """Refuse a cut image; beside it, overviews and masks that are no TIFFs, and what else may name other files."""
    refuse_cut_tiff(path)
    for world in world_files(path):
        is_plain(world)
    for beside in safety.files_beside(path):
        check_beside(beside)
        open_raster(os.fspath(beside.absolute()), ("GTiff",)).close()


def _refuse_no_file(path: Path) -> None:
    try:
        status = path.stat()
    except OSError:
        status = None
    if status is not None and stat.S_ISDIR(status.st_mode):
        found, remedy = "a folder", "give the images inside it"
    elif status is None or not is_plain(path):
        found, remedy = "no such file", "check the path"
    elif status.st_size == 0:
        found, remedy = "an empty file of 0 bytes", "copy it again from its source"
    elif not os.access(path, os.R_OK):
        found, remedy = "no permission to read it", "change its permissions"
    else:
        return
    raise DataError(explain(f"{path} cannot be read", found, "an image file", remedy))


def _describe_raster(opening: _Opening, alpha_is_data: bool, ids: bool) -> SceneInfo:
    from rasterio.enums import ColorInterp, Interleaving, MaskFlags

    path, source = opening.path, str(opening.path)
    with open_raster(opening.source, opening.drivers) as opened:
        safety.refuse_bomb(source, opened.height, opened.width)
        if opened.count == 0:
            remedy = f"give one of {', '.join(opened.subdatasets[:3]) or 'its bands as a GeoTIFF'}"
            raise DataError(explain(f"{source} has no bands of its own", "a container", "an image", remedy))
        pixel_bytes = max(np.dtype(_OF_TIFF.get(each, each)).itemsize for each in opened.dtypes)
        if opened.interleaving == Interleaving.pixel:
            pixel_bytes *= opened.count
        safety.refuse_large_blocks(source, opened.block_shapes[0], pixel_bytes)
        names = [name or "" for name in opened.descriptions]
        alpha = None
        for index, meaning in enumerate(opened.colorinterp, start=1):
            named_alpha = names[index - 1].lower() in ("", "alpha", "mask", "opacity")
            if meaning == ColorInterp.alpha and named_alpha and not alpha_is_data and opened.count > 1:
                alpha = index
        if alpha is not None:
            _refuse_measuring_alpha(opened, source, alpha)
        kept = tuple(index for index in opened.indexes if index != alpha)
        flags = set(opened.mask_flag_enums[kept[0] - 1])
        info = SceneInfo(
            path=path,
            height=opened.height,
            width=opened.width,
            num_bands=len(kept),
            dtype=_one_dtype(
                source, [opened.dtypes[index - 1] for index in kept], _ID_DTYPES if ids else DTYPES
            ),
            nodata=_one_nodata(source, [opened.nodatavals[index - 1] for index in kept]),
            band_names=tuple(names[index - 1] for index in kept),
            block=opened.block_shapes[kept[0] - 1],
            georef=_georef(opened, path),
            driver=opened.driver,
            is_compressed=opened.driver == "GTiff" and opened.compression is not None,
            source=opening.source,
            band_indexes=kept,
            alpha_index=alpha,
            has_mask=MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags,
        )
        _refuse_truncated(opened, path, info)
    return info


def _georef(opened: DatasetReader, path: Path) -> GeoRef:
    """Say where a raster lies; GDAL reads world files of a TIFF, but not the system that a .prj beside it names."""
    transform = tuple(opened.transform)[:6]
    if opened.crs:
        return GeoRef(opened.crs.to_wkt(), transform)
    is_local = transform != NO_PLACE.transform and path.is_file()
    return GeoRef(find_projection(path) if is_local else None, transform)


def _refuse_measuring_alpha(opened: DatasetReader, source: str, alpha: int) -> None:
    """Look at the middle of an alpha band: opacity has few values, a mislabelled near infrared has many."""
    from rasterio.errors import RasterioError
    from rasterio.windows import Window as Place

    rows, cols = min(256, opened.height), min(256, opened.width)
    middle = Place((opened.width - cols) // 2, (opened.height - rows) // 2, cols, rows)
    try:
        num_values = len(set(opened.read(alpha, window=middle).flat))
    except RasterioError as error:
        remedy = "copy the file again from its source"
        raise DataError(
            explain(f"{source} cannot be read", one_line(error), "whole pixels", remedy)
        ) from error
    if num_values > _MAX_ALPHA_VALUES:
        raise DataError(
            explain(
                f"band {alpha} of {source} is marked as alpha (opacity)",
                f"{num_values} different values in its middle",
                f"at most {_MAX_ALPHA_VALUES}",
                f"mark it as data (gdal_edit.py -colorinterp_{alpha} undefined) or give the band a name",
            )
        )


def _one_dtype(source: str, dtypes: list[str], known: tuple[str, ...]) -> str:
    for dtype in dtypes:
        if dtype not in known or dtype != dtypes[0]:
            raise DataError(
                explain(
                    f"{source} has pixels of a type that is not read",
                    ", ".join(dict.fromkeys(dtypes)),
                    f"one of {', '.join(known)} in all bands",
                    "convert it (gdal_translate -ot Float32, or -ot UInt16 -scale)",
                )
            )
    return dtypes[0]


def _one_nodata(source: str, values: list[float | None]) -> float | None:
    if len({repr(value) for value in values}) > 1:
        raise DataError(
            explain(
                f"{source} has several nodata values",
                ", ".join(str(value) for value in values),
                "the same in all bands",
                "give all bands one nodata value (gdal_translate -a_nodata)",
            )
        )
    return values[0]


def _refuse_truncated(opened: DatasetReader, path: Path, info: SceneInfo) -> None:
    """Look whether the last block, which most writers put last, ends within the file."""
    if opened.driver != "GTiff" or not path.is_file():
        return
    rows, cols = info.block
    place = f"{(info.width - 1) // cols}_{(info.height - 1) // rows}"
    last = info.band_indexes[-1]
    offset = opened.get_tag_item(f"BLOCK_OFFSET_{place}", "TIFF", bidx=last)
    size = opened.get_tag_item(f"BLOCK_SIZE_{place}", "TIFF", bidx=last)
    have_bytes = path.stat().st_size
    if offset is not None and size is not None and int(offset) + int(size) > have_bytes:
        raise DataError(
            explain(
                f"{path} is truncated",
                f"{have_bytes:,} bytes",
                f"at least {int(offset) + int(size):,}",
                "copy the file again from its source",
            )
        )
