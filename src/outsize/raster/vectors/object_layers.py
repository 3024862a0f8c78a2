"""Writes objects for a GIS: a GeoPackage with one layer per class, or GeoJSON; areas or points."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outsize.errors import OutputError, explain, one_line
from outsize.files.ownership import MADE_BY
from outsize.raster import disk
from outsize.raster.pixel_area import measure_pixels
from outsize.raster.reading import SceneInfo
from outsize.raster.vectors.features import choose_driver
from outsize.raster.vectors.object_shapes import Masked, areas, middles, outline

Shape = Literal["area", "point"]
_KINDS = {"area": "MultiPolygon", "point": "Point"}


@dataclass(frozen=True)
class ObjectSummary:
    """What was written: how many objects of each class, and their area together."""

    counts: dict[str, int]
    area: float
    area_unit: str  # "m2", or "px" for a scene without a coordinate system


def write_objects(
    target: Path,
    objects: Sequence[Masked],
    info: SceneInfo,
    *,
    class_names: Sequence[str],
    shape: Shape = "area",
    simplify_px: float = 0.0,
) -> ObjectSummary:
    """Write objects of one scene; the file appears when it is complete.

    Columns: id (from 1, the place in `objects`), class, score, area_m2 (on the ellipsoid; area_px without a coordinate
    system), the bounding box x_min, y_min, x_max, y_max in the scene's coordinates, and source. Every class has a
    layer, also one that was not found; GeoJSON knows one layer, and is always in longitude and latitude.
    """
    driver = choose_driver(target)
    _refuse_no_place(target, driver, info)
    disk.make_folder(target.parent)
    pixel_area = measure_pixels(info.georef, info.height, info.width) if info.georef.crs_wkt else None
    sizes = areas(objects, pixel_area)
    shapes = outline(objects, info.georef) if shape == "area" else middles(objects, info.georef)
    if simplify_px > 0 and shape == "area":
        shapes = _simplified(shapes, simplify_px * min(info.georef.resolution))
    unit = "m2" if pixel_area else "px"
    fields = _fields(objects, info, class_names, {f"area_{unit}": sizes})
    class_ids = np.array([each.class_id for each in objects], np.int64)
    rows = {name: np.flatnonzero(class_ids == number) for number, name in enumerate(class_names)}
    layers = rows if driver == "GPKG" else {"objects": np.arange(len(objects))}
    with disk.replacing(target) as partial:
        for number, (layer, chosen) in enumerate(layers.items()):
            form = {
                "driver": driver,
                "crs": info.georef.crs_wkt,
                "layer": layer,
                "geometry_type": _KINDS[shape],
            }
            columns = {name: column[chosen] for name, column in fields.items()}
            try:
                _write(partial, form, shapes[chosen], columns, append=number > 0)
            except _failures() as error:
                raise disk.incomplete(target, one_line(error)) from error
        if driver == "GPKG":
            _refuse_incomplete(partial, target, {layer: len(chosen) for layer, chosen in layers.items()})
    counts = {name: len(chosen) for name, chosen in rows.items()}
    return ObjectSummary(counts, float(sizes.sum()), unit)


def _write(
    partial: Path,
    form: dict[str, Any],
    shapes: NDArray[Any],
    fields: dict[str, NDArray[Any]],
    *,
    append: bool,
) -> None:
    import pyogrio
    import shapely

    options = {"RFC7946": "YES"} if form["driver"] == "GeoJSON" else {"GEOMETRY_NAME": "geom"}
    options["DESCRIPTION"] = MADE_BY
    with warnings.catch_warnings():
        # a scene without a coordinate system was warned of in words of our own
        warnings.filterwarnings("ignore", "'crs' was not provided")
        pyogrio.raw.write(
            partial,
            shapely.to_wkb(shapes),
            list(fields.values()),
            list(fields),
            append=append,
            **form,
            **options,
        )


def _failures() -> tuple[type[Exception], ...]:
    import pyogrio

    return pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError


def _fields(
    objects: Sequence[Masked], info: SceneInfo, names: Sequence[str], sizes: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[Any]]:
    windows = [each.window for each in objects]
    rows = np.array([(each.row, each.row, each.row_end, each.row_end) for each in windows], float).reshape(
        -1, 4
    )
    cols = np.array([(each.col, each.col_end, each.col, each.col_end) for each in windows], float).reshape(
        -1, 4
    )
    x, y = info.georef.ground(rows, cols)
    corners: dict[str, Any] = {"x": x, "y": y}
    return {
        "id": np.arange(1, len(objects) + 1),
        "class": np.array([names[each.class_id] for each in objects], object),
        "score": np.array([each.score for each in objects], np.float64),
        **sizes,
        **{f"{axis}_min": at.min(axis=1) for axis, at in corners.items()},
        **{f"{axis}_max": at.max(axis=1) for axis, at in corners.items()},
        "source": np.array([info.path.name] * len(objects), object),
    }


def _simplified(shapes: NDArray[Any], tolerance: float) -> NDArray[Any]:
    """Straighten outlines one by one: objects need not meet without gaps, as the regions of a map must."""
    import shapely

    simple = shapely.simplify(shapes, tolerance, preserve_topology=True)
    parts, owner = shapely.get_parts(simple, return_index=True)
    return np.asarray(shapely.multipolygons(parts, indices=owner), object)


def _refuse_no_place(target: Path, driver: str, info: SceneInfo) -> None:
    if driver == "GeoJSON" and info.georef.crs_wkt is None:
        raise OutputError(
            explain(
                f"{target} cannot be written as GeoJSON",
                f"{info.path.name} without a coordinate system",
                "a place on Earth, for GeoJSON is always in longitude and latitude",
                "write a GeoPackage instead (predict.objects.vectors = 'gpkg')",
            )
        )


def _refuse_incomplete(partial: Path, target: Path, counts: dict[str, int]) -> None:
    """Look for all rows of all layers: GDAL is silent when the disk fills up late."""
    try:
        with closing(sqlite3.connect(partial)) as database:
            found = {}
            for layer in counts:
                table = layer.replace('"', '""')
                found[layer] = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
    except sqlite3.Error as error:
        raise disk.incomplete(target, one_line(error)) from error
    if found != counts:
        raise disk.incomplete(target, f"{sum(found.values()):,} of {sum(counts.values()):,} objects")
