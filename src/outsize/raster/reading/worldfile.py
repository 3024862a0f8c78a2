"""Finds where a picture lies on Earth: world files, PAM files and projections beside it.

a.jpg   a.jgw  a.jpgw  a.jpegw  a.wld     six numbers: the affine map, of the CENTRE of the first pixel
a.png   a.pgw  a.pngw  a.wld
a.tif   a.tfw  a.tifw  a.tiffw  a.wld     for a TIFF, GDAL reads them itself
a.jpg.aux.xml                             GDAL's own: the map of the CORNER of the first pixel, and the system
a.prj, a.jpg.prj                          the coordinate system of a world file, which does not tell it
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.parsers import expat

from outsize.errors import DataError, explain
from outsize.files.plain import is_plain, read_plain
from outsize.raster.georef import NO_PLACE, GeoRef, Transform
from outsize.raster.reading.safety import parse_xml

_MAX_BYTES = 2**20
# WKT, the number of one, its URN, or what PROJ takes
_FILES = re.compile(r"(?:grids|init)\s*=(?!@null)")
_CRS = re.compile(
    r"(?s:[A-Za-z_0-9]+\s*[\[(].*)|EPSG:\d{1,9}|urn:ogc:def:crs:[\w:.-]+|(\+\w+(=[-+\w.,]+)?\s*)+"
)


def find_place(path: Path) -> GeoRef:
    """Return where the stored pixels of a picture lie, as files beside it say; NO_PLACE where there are none.

    A PAM file counts before a world file, as for GDAL; of the coordinate system, what the PAM file says counts first.
    """
    pam = path.with_name(f"{path.name}.aux.xml")
    crs, transform = _read_pam(pam) if is_plain(pam) else (None, None)
    if transform is None:
        world = next((each for each in world_files(path) if is_plain(each)), None)
        if world is None:
            return NO_PLACE
        transform = read_world_file(world)
    return GeoRef(crs or find_projection(path), transform)


def world_files(path: Path) -> list[Path]:
    """Return the names that a world file of a picture may have, the likeliest first; large letters last."""
    suffix = path.suffix.lower().lstrip(".")
    kinds = [f"{suffix[0]}{suffix[-1]}w", f"{suffix}w"] if suffix else []
    kinds += ["jpegw", "jpgw"] if suffix in ("jpg", "jpeg") else []
    names = [f".{kind}" for kind in (*kinds, "wld")]
    return [path.with_suffix(name) for name in dict.fromkeys((*names, *map(str.upper, names)))]


def read_world_file(path: Path) -> Transform:
    """Read six numbers, one in a line: a, d, b, e, then x and y of the centre of the first pixel."""
    words = _text(path).replace(",", ".").split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) != 6 or not all(map(math.isfinite, numbers)):
        found = " ".join(words)[:60] or "nothing"
        need, remedy = "six numbers, one in a line", "write it again, or remove it"
        raise DataError(explain(f"{path} is no world file", found, need, remedy))
    a, d, b, e, x, y = numbers
    _refuse_flat(path, a, b, d, e)
    return a, b, x - a / 2 - b / 2, d, e, y - d / 2 - e / 2


def find_projection(path: Path) -> str | None:
    """Return the coordinate system that a .prj file beside a picture names, as WKT."""
    for each in (path.with_suffix(".prj"), path.with_name(f"{path.name}.prj"), path.with_suffix(".PRJ")):
        if is_plain(each):
            return _as_wkt(each, _text(each))
    return None


def placed(georef: GeoRef, orientation: int, height: int, width: int) -> GeoRef:
    """Return the place of upright pixels (height x width) of a picture whose stored pixels lie at `georef`.

    Upright (row, col) is stored (row', col'); both count from a corner, so a mirrored row is height - row:

        EXIF 1: row, col    2: row, W - col    3: H - row, W - col    4: H - row, col    5 to 8: and changed places
    """
    if orientation == 1:
        return georef
    row, row_step = (height, -1) if orientation in (3, 4, 7, 8) else (0, 1)
    col, col_step = (width, -1) if orientation in (2, 3, 6, 7) else (0, 1)
    a, b, _, d, e, _ = georef.transform
    if orientation >= 5:  # stored row = upright column
        x, y = georef.ground(col, row)
        return replace(georef, transform=(b * col_step, a * row_step, x, e * col_step, d * row_step, y))
    x, y = georef.ground(row, col)
    return replace(georef, transform=(a * col_step, b * row_step, x, d * col_step, e * row_step, y))


def _read_pam(path: Path) -> tuple[str | None, Transform | None]:
    """Return coordinate system and map of a PAM file; it may have either, or neither."""
    texts, inside = {"SRS": "", "GeoTransform": ""}, [""]

    def start(tag: str, _: dict[str, str]) -> None:
        inside.append(tag)

    def data(more: str) -> None:
        if len(inside) == 3 and inside[-1] in texts:  # of the picture, not of something in it
            texts[inside[-1]] += more

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, lambda _: inside.pop()
    parser.CharacterDataHandler = data
    parse_xml(path, parser, "a PAM file")
    crs = _as_wkt(path, texts["SRS"]) if texts["SRS"].strip() else None
    if not texts["GeoTransform"].strip():
        return crs, None
    try:
        c, a, b, f, d, e = (float(word) for word in texts["GeoTransform"].split(","))
    except ValueError as error:
        found, need = " ".join(texts["GeoTransform"].split())[:60], "six numbers with commas between"
        remedy = "write it again, or remove it"
        raise DataError(explain(f"GeoTransform of {path} is none", found, need, remedy)) from error
    _refuse_flat(path, a, b, d, e)
    return crs, (a, b, c, d, e, f)


def _refuse_flat(path: Path, a: float, b: float, d: float, e: float) -> None:
    if a * e - b * d == 0:
        need, remedy = "pixels of some height and width", "write it again, or remove it"
        raise DataError(explain(f"{path} gives pixels no area", f"{a}, {b}, {d}, {e}", need, remedy))


def _as_wkt(path: Path, text: str) -> str:
    from rasterio.crs import CRS
    from rasterio.errors import CRSError

    text = text.strip()
    try:
        if not _CRS.fullmatch(text) or _FILES.search(text):
            raise CRSError  # of a name or an address, GDAL would read the file, or ask the network
        return str(CRS.from_user_input(text).to_wkt())
    except CRSError as error:
        need, remedy = "WKT or a name such as EPSG:3857", "write it again, or remove it"
        found = " ".join(text[:60].split()) or "nothing"
        raise DataError(explain(f"{path} names no coordinate system", found, need, remedy)) from error


def _text(path: Path) -> str:
    try:
        return read_plain(path, _MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "not UTF-8 text"
        raise DataError(
            explain(f"{path} cannot be read", what, "text", "write it again, or remove it")
        ) from error
