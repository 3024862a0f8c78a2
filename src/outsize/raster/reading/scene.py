"""Opens a scene, checks all that can be checked without its pixels, and says what it is."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outsize.errors import DataError, explain
from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.raster.reading import picture, safety
from outsize.raster.reading.mosaic import remade_vrt
from outsize.raster.reading.tiffs import refuse_cut_tiff
from outsize.raster.reading.worldfile import find_place, find_projection, placed, world_files
from outsize.tiles.window import Window

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

DTYPES = ("uint8", "uint16", "int16", "float32")
"""Pixel types that are read; others lose precision on the way to a network or hold no measurements."""

_ID_DTYPES = ("uint8", "uint16", "int16", "int32", "uint32", "int64", "uint64")

_MAX_ALPHA_VALUES = 32
_LONG_NAME = 300
_OF_TIFF = {"complex_int16": "complex64"}  # what numpy does not know

CACHE_BYTES = 128 * 2**20
"""GDAL's block cache; its default, 5 % of memory, fills up with blocks that are not read again."""


@dataclass(frozen=True, slots=True)
class SceneInfo:
    """What is known of a scene before its pixels are read."""

    path: Path
    height: int
    width: int
    num_bands: int
    dtype: str
    nodata: float | None
    band_names: tuple[str, ...]
    block: tuple[int, int]
    georef: GeoRef
    driver: str = ""  # GDAL's name of the format; "" for pictures, which Pillow reads
    source: str = ""  # what GDAL opens; differs from the path only for allowed addresses
    band_indexes: tuple[int, ...] = ()  # from 1, in file order, without alpha
    alpha_index: int | None = None
    has_mask: bool = False
    is_compressed: bool = False  # a TIFF whose blocks are worth decoding once only
    shrink: int = 1  # of a picture: pixels a side that are read as one
    nearest: bool = False  # whether that one is the pixel in their middle, as of labels, and not their mean

    @property
    def window(self) -> Window:
        """The whole scene as a window."""
        return Window(0, 0, self.height, self.width)

    @property
    def num_px(self) -> int:
        """Pixels in the scene."""
        return self.height * self.width

    @property
    def always_valid(self) -> bool:
        """Whether nothing in the file can make a pixel invalid."""
        return self.nodata is None and self.alpha_index is None and not self.has_mask


def describe(
    path: Path | str, *, allow_references: bool = False, alpha_is_data: bool = False, ids: bool = False
) -> SceneInfo:
    """Open a scene, check everything that can be checked without reading its pixels, and say what it is.

    Where its pixels are `ids` of objects, they may be whole numbers of any size.

    A band marked as alpha says which pixels are valid and is no band of the scene, unless it bears a name
    other than alpha, or `alpha_is_data`: many tools mark the fourth of red, green, blue, near infrared so.
    """
    name = os.fspath(path)
    if safety.is_address(name):
        if not allow_references:
            safety.refuse_address(name)
        return _describe_raster(_Opening(Path(name), name, None), alpha_is_data, ids)
    path = Path(path)
    _refuse_no_file(path)
    if picture.is_picture(path):
        with picture.Picture(path) as opened:
            return describe_picture(opened)
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
    return _Opening(path, source, safety.OWN_DRIVERS)


def check_image(path: Path) -> None:
    """Refuse what is no image of its own, or lies beside one; for what GDAL opens by itself."""
    check_beside(path)
    open_raster(os.fspath(path.absolute())).close()


def check_beside(path: Path) -> None:
    """Refuse a cut image; beside it, overviews and masks that are no TIFFs, and what else may name other files."""
    refuse_cut_tiff(path)
    for world in world_files(path):
        safety.is_there(world)
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
    elif status is None or not safety.is_there(path):
        found, remedy = "no such file", "check the path"
    elif status.st_size == 0:
        found, remedy = "an empty file of 0 bytes", "copy it again from its source"
    elif not os.access(path, os.R_OK):
        found, remedy = "no permission to read it", "change its permissions"
    else:
        return
    raise DataError(explain(f"{path} cannot be read", found, "an image file", remedy))


def describe_picture(opened: picture.Picture) -> SceneInfo:
    """Say what an open picture is."""
    height, width, num_bands, dtype, has_alpha, nodata = opened.describe()
    path = opened.path
    safety.refuse_bomb(path, height, width)
    names = ("",) * num_bands
    size, alpha = (height, width), num_bands + 1 if has_alpha else None
    georef = placed(find_place(path), opened.orientation, height, width)
    return SceneInfo(path, *size, num_bands, dtype, nodata, names, size, georef, alpha_index=alpha)


def shrunk(info: SceneInfo, shrink: int, *, nearest: bool = False) -> SceneInfo:
    """Return a picture that is read at a part of its size."""
    if shrink == info.shrink:
        return info
    height, width = info.height // shrink, info.width // shrink
    if info.driver or not height * width:
        found = f"a {info.driver} file" if info.driver else f"{info.height} x {info.width} px"
        need, remedy = f"a PNG or JPEG picture of more than {shrink} px a side", "leave data.shrink out"
        raise DataError(explain(f"{info.path} cannot be read smaller", found, need, remedy))
    size, georef = (height, width), info.georef
    if georef != NO_PLACE:
        a, b, x, d, e, y = georef.transform
        georef = replace(georef, transform=(a * shrink, b * shrink, x, d * shrink, e * shrink, y))
    return replace(
        info, height=height, width=width, block=size, georef=georef, shrink=shrink, nearest=nearest
    )


def open_raster(
    source: str, drivers: tuple[str, ...] | None = safety.OWN_DRIVERS, **options: str
) -> DatasetReader:
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


def one_line(error: BaseException) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split())


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
