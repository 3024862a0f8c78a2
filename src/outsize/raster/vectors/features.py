"""Writes polygons with their columns to a vector file, in batches, and looks whether all of it arrived."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import OutputError, explain, one_line
from outsize.files.ownership import MADE_BY
from outsize.raster import disk

_DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON", ".json": "GeoJSON"}
_BATCH_POINTS = 2_000_000


def choose_driver(target: Path) -> str:
    """Return GDAL's name of the format that a file name asks for."""
    if target.suffix.lower() not in _DRIVERS:
        needed = " or ".join(_DRIVERS)
        raise OutputError(
            explain(f"{target} has an unknown kind of polygons", target.suffix, needed, "rename the output")
        )
    return _DRIVERS[target.suffix.lower()]


def write_features(
    target: Path, driver: str, crs_wkt: str | None, shapes: NDArray[Any], fields: dict[str, NDArray[Any]]
) -> int:
    """Write polygons, one layer named like the file, and return the number of points."""
    import pyogrio
    import shapely

    sizes = shapely.get_num_coordinates(shapes)
    options: dict[str, Any] = {"RFC7946": "YES"} if driver == "GeoJSON" else {"GEOMETRY_NAME": "geom"}
    options["DESCRIPTION"] = MADE_BY
    fixed = {"driver": driver, "layer": "polygons", "geometry_type": "Polygon", "crs": crs_wkt, **options}
    with disk.replacing(target) as partial:
        try:
            for first, end in _batches(sizes, whole=driver == "GeoJSON"):
                columns = [column[first:end] for column in fields.values()]
                wkb = shapely.to_wkb(shapes[first:end])
                pyogrio.raw.write(partial, wkb, columns, list(fields), append=first > 0, **fixed)
        except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
            raise disk.incomplete(target, one_line(error)) from error
        _refuse_incomplete(partial, target, driver, len(shapes))
    return int(sizes.sum())


def _batches(sizes: NDArray[Any], whole: bool) -> list[tuple[int, int]]:
    """Cut the polygons where the points of a batch are enough; at least one batch, even of none."""
    if whole or len(sizes) == 0:
        return [(0, len(sizes))]
    batch = np.cumsum(sizes) // _BATCH_POINTS
    return list(pairwise([0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(sizes)]))


def _refuse_incomplete(partial: Path, target: Path, driver: str, num_features: int) -> None:
    """Look for all rows and their index, or for the closing bracket: GDAL is silent when the disk fills up late."""
    if driver == "GeoJSON":
        with partial.open("rb") as file:
            file.seek(max(0, partial.stat().st_size - 16))
            end = file.read().split()
        if end[-2:] != [b"]", b"}"]:
            raise disk.incomplete(target, "a file without its end")
        return
    try:
        with closing(sqlite3.connect(partial)) as database:
            tables = ("polygons", "rtree_polygons_geom")
            counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    except sqlite3.Error as error:
        raise disk.incomplete(target, one_line(error)) from error
    if counts != [num_features] * 2:
        raise disk.incomplete(target, f"{counts[0]:,} polygons, {counts[1]:,} in their index")
