"""Reads layers of vector files, each by the one driver that its name stands for.

pyogrio cannot be given drivers, and GDAL would try 70 of them on what a file begins with: some read any file that it
names, ask a network, or run a pipeline. So a file is opened through a link in a folder of our own, by a name that
leaves no choice: "GPKG:" and "GeoJSON:" in front name the driver; a Shapefile and a FlatGeobuf begin with bytes, a zero
among the first, that no driver for text sees past. What lies beside the file is not there, but for a Shapefile's parts.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outsize.errors import DataError, UnsafeFileError, explain, one_line
from outsize.files.plain import first_bytes, is_plain
from outsize.files.trees import json_tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DRIVERS = {".gpkg": "GPKG:", ".geojson": "GeoJSON:", ".json": "GeoJSON:", ".shp": "", ".fgb": ""}
# version and patch of a FlatGeobuf, then the length of its header, of which the last byte is zero
_STARTS = {
    ".shp": re.compile(rb"\0\0\x27\x0a\0"),
    ".fgb": re.compile(rb"fgb\x03fgb[\0-\x09].{3}\0", re.DOTALL),
}
_START_BYTES = 64
_PARTS = (".shx", ".dbf", ".prj", ".cpg")
_PLAIN_STEM = re.compile(r"[\w][\w .-]*")

_STEP_BYTES = 2**24
# A coordinate system of GeoJSON may be a link, which GDAL follows. Strings in which a letter is written by its number
# could be that word as well.
_LINK = re.compile(rb"""["'](?:link|url)["']|\\u00[4-7]""", re.IGNORECASE)
_MOST_SUSPECT_BYTES = 2**28


def is_vector(name: str) -> bool:
    """Say whether a file name is one of polygons."""
    return name.lower().endswith(tuple(_DRIVERS))


@contextmanager
def opened(path: Path, what: str) -> Iterator[str]:
    """Give what pyogrio is to open for a vector file; `what` it is to us stands in messages.

    Whatever goes wrong with its contents inside of the block is a DataError.
    """
    import pyogrio
    import shapely
    from pyproj.exceptions import ProjError

    suffix = _refuse_no_vector(path, what)
    stem = path.stem if _PLAIN_STEM.fullmatch(path.stem) and path.stem.isprintable() else "layer"
    with tempfile.TemporaryDirectory(prefix="outsize-") as folder:
        link = Path(folder, stem + suffix)
        link.symlink_to(path.resolve())
        for part in _PARTS if suffix == ".shp" else ():
            for beside in (path.with_suffix(part), path.with_suffix(part.upper())):
                if is_plain(beside) and not link.with_suffix(part).exists():
                    link.with_suffix(part).symlink_to(beside.resolve())
        try:
            with warnings.catch_warnings():
                # GDAL's remarks on single features, a line each; what is not read is found out by ourselves
                warnings.filterwarnings("ignore", category=RuntimeWarning, module="pyogrio")
                yield f"{_DRIVERS[suffix]}{link}"
        except (
            *(pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, ProjError),
            *(shapely.errors.ShapelyError, ValueError, OverflowError, OSError),
            UnboundLocalError,
        ) as error:
            found = (
                one_line(error).replace(f"{_DRIVERS[suffix]}{link}", path.name).replace(str(link), path.name)
            )
            if isinstance(error, UnboundLocalError):
                if "'wkt'" not in found:
                    raise
                # pyogrio's own code takes a name that got no value where a system cannot be written as text
                found = "a coordinate system that cannot be read"
            need, remedy = "polygons in a whole file", "export it again (ogr2ogr)"
            raise DataError(explain(f"{what} {path} cannot be read", found[:200], need, remedy)) from error


def layer_names(source: str) -> list[str]:
    """Return the layers of what was opened."""
    import pyogrio

    return [str(name) for name in pyogrio.list_layers(source)[:, 0]]


def read_layer(
    source: str,
    layer: str | None,
    columns: Sequence[str] = (),
    bbox: tuple[float, float, float, float] | None = None,
) -> tuple[str | None, NDArray[Any], list[NDArray[Any]]]:
    """Return a layer's coordinate system, its flat shapes, None where there are none, and the columns asked for."""
    import pyogrio
    import shapely

    layer = layer_names(source)[0] if layer is None else layer
    _refuse_view(source, layer)
    about, _, wkb, found = pyogrio.raw.read(source, layer=layer, columns=list(columns), bbox=bbox)
    if wkb is None or len(found) != len(columns):
        raise ValueError("a table without shapes" if wkb is None else "columns of one name")
    shapes = shapely.force_2d(shapely.from_wkb(np.asarray(wkb, object)))
    return about["crs"], shapes, list(found)


def describe_layer(source: str, layer: str | None) -> dict[str, Any]:
    """Return what pyogrio says of a layer: its fields, its coordinate system, where its shapes lie."""
    import pyogrio

    _refuse_view(source, layer_names(source)[0] if layer is None else layer)
    found: dict[str, Any] = pyogrio.read_info(source, layer=layer, force_total_bounds=True)
    return found


def _refuse_view(source: str, layer: str) -> None:
    """Refuse a layer of a GeoPackage that is no table: the query behind a view may never end."""
    if not source.startswith("GPKG:"):
        return
    address = f"{Path(source.removeprefix('GPKG:')).as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as file:
            query = "SELECT type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
            held = file.execute(query, (layer,)).fetchmany(2)
    except sqlite3.Error as error:
        raise ValueError(one_line(error)) from error
    if [kind for kind, sql in held if str(sql).startswith("CREATE TABLE")] != ["table"]:
        raise ValueError(
            f"layer {layer}, which is {held[0][0] if held else 'nothing'} and no table of its own"
        )


def are_finite(shapes: NDArray[Any]) -> NDArray[np.bool_]:
    """Say of each shape whether all its corners are somewhere."""
    import shapely

    points, owner = shapely.get_coordinates(shapes, return_index=True)
    finite = np.ones(len(shapes), np.bool_)
    finite[owner[~np.isfinite(points).all(axis=1)]] = False
    return finite


def _refuse_no_vector(path: Path, what: str) -> str:
    suffix = path.suffix.lower()
    found = ""
    if not is_plain(path):
        found = "no such file"
    elif suffix not in _DRIVERS:
        found = f"a file named {suffix or 'without an ending'}"
    elif path.stat().st_size == 0:
        found = "an empty file"
    elif suffix in _STARTS and not _STARTS[suffix].match(first_bytes(path, _START_BYTES)):
        found = "other bytes at its start"
    if found:
        need = f"polygons in a file named {', '.join(_DRIVERS)}"
        raise DataError(
            explain(f"{what} {path} cannot be read", found, need, "check the name, or export it again")
        )
    if _DRIVERS[suffix] == "GeoJSON:":
        _refuse_links(path, what)
    return suffix


def _refuse_links(path: Path, what: str) -> None:
    """Refuse GeoJSON whose coordinate system is to be fetched from somewhere; parse it all only where it might be."""
    if not _has(path, _LINK):
        return
    try:
        if path.stat().st_size > _MOST_SUSPECT_BYTES:
            raise ValueError("too large to look through")
        tree = json_tree(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        need, remedy = "plain GeoJSON", "export it again (ogr2ogr)"
        raise DataError(explain(f"{what} {path} cannot be read", one_line(error), need, remedy)) from error
    left = [tree]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for key, value in each.items():
                if (
                    key == "crs"
                    and isinstance(value, dict)
                    and str(value.get("type")).lower() in ("link", "url")
                ):
                    need, remedy = "its name", "export it again (ogr2ogr)"
                    found = "the address of a coordinate system"
                    raise UnsafeFileError(explain(f"{what} {path} is refused", found, need, remedy))
            left += each.values()
        elif isinstance(each, list):
            left += [inner for inner in each if isinstance(inner, dict | list)]


def _has(path: Path, pattern: re.Pattern[bytes]) -> bool:
    with path.open("rb") as file:
        before = b""
        while step := file.read(_STEP_BYTES):
            if pattern.search(before + step):
                return True
            before = step[-16:]
    return False
