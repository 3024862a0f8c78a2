"""Writes the regions of a class map as polygons: a GeoPackage on the map's grid, or GeoJSON in longitude, latitude."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, OutputError, explain, one_line
from outsize.raster import disk
from outsize.raster.gdal import open_raster
from outsize.raster.georef import GeoRef
from outsize.raster.pixel_area import measure_pixels
from outsize.raster.vectors.features import choose_driver, write_features
from outsize.raster.vectors.outlines import Outlines, ReadRows, trace

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

CONFIDENCE_FULL = 250
"""What an integer raster of confidences stores for 1; a raster of floats stores 1 itself."""

_STRIP_PX = 1 << 21  # pixels scanned at once: arrays of a few tens of megabytes
_MAX_THREADS = 8  # what one reader and the joining of strips can keep busy


@dataclass(frozen=True, slots=True)
class PolygonSummary:
    """What was written."""

    num_polygons: int
    num_points: int
    num_too_small: int
    area: float  # of all polygons together, in `area_unit`
    area_unit: str  # "m2", or "px" for a map without a coordinate system


def write_polygons(
    classes_tif: Path,
    confidence_tif: Path | None,
    target: Path,
    *,
    class_names: Mapping[int, str],
    min_area_m2: float = 0.0,
    simplify_m: float = 0.0,
    advance: Callable[[int], object] = lambda _: None,
) -> PolygonSummary:
    """Write each 4-connected region of one class as a polygon; the file appears when it is complete.

    Columns: id, class, value, area_m2 (on the ellipsoid; area_px, and limits in pixels, for a map without a
    coordinate system), confidence (mean over the region, 0 to 1). The map's nodata is not outlined. Outlines follow
    pixel edges; simplified ones still meet their neighbours without gaps, and keep the area of the pixels. `advance` is
    called with the number of pixels done.
    """
    driver = choose_driver(target)
    disk.make_folder(target.parent)
    with open_raster(os.fspath(classes_tif)) as opened:
        height, width = opened.height, opened.width
        georef = GeoRef(opened.crs.to_wkt() if opened.crs else None, tuple(opened.transform)[:6])
        _refuse_no_place(target, driver, georef)
        pixel_area = measure_pixels(georef, height, width) if georef.crs_wkt else None
        read_confidence, full, close = _open_confidence(confidence_tif)
        try:
            outlines = trace(
                _reader(opened, classes_tif),
                read_confidence,
                (height, width),
                skip=_nodata_of(opened, classes_tif),
                strip_rows=max(1, min(height, _STRIP_PX // width)),
                num_threads=min(_MAX_THREADS, os.cpu_count() or 1),
                integral_m2=pixel_area.integral_m2 if pixel_area else None,
                advance=advance,
            )
        finally:
            close()
    kept = np.flatnonzero(outlines.area >= min_area_m2)
    disk.need_space(target.parent, 20 * len(outlines.row) + 300 * len(kept), target.name)
    fields = _fields(outlines, kept, class_names, pixel_area is not None, full)
    unit_m = float(np.sqrt(pixel_area.centre_m2)) if pixel_area else 1.0
    shapes = _geometries(outlines, kept, georef, simplify_m / unit_m)
    num_points = write_features(target, driver, georef.crs_wkt, shapes, fields)
    num_small = len(outlines.value) - len(kept)
    total = float(outlines.area[kept].sum())
    return PolygonSummary(len(kept), num_points, num_small, total, "m2" if pixel_area else "px")


def _fields(
    outlines: Outlines, kept: NDArray[np.int64], names: Mapping[int, str], in_metres: bool, full: float | None
) -> dict[str, NDArray[Any]]:
    value = outlines.value[kept]
    known, index = np.unique(value, return_inverse=True)
    texts = np.array([names.get(int(each), str(int(each))) for each in known], object)
    fields = {
        "id": np.arange(1, len(kept) + 1),
        "class": texts[index] if len(kept) else texts,
        "value": value,
    }
    fields["area_m2" if in_metres else "area_px"] = outlines.area[kept]
    if full is not None:
        fields["confidence"] = outlines.mean[kept] / full
    return fields


def _geometries(
    outlines: Outlines, kept: NDArray[np.int64], georef: GeoRef, simplify_px: float
) -> NDArray[Any]:
    """Build polygons in ground coordinates, simplified together so that common borders stay common."""
    import shapely

    points, ring_start, polygon_start = _select(outlines, kept)
    shapes = shapely.from_ragged_array(
        shapely.GeometryType.POLYGON,
        np.column_stack([outlines.col[points], outlines.row[points]]).astype(np.float64),
        (ring_start, polygon_start),
    )
    if simplify_px > 0:
        shapes = shapely.coverage_simplify(shapes, simplify_px)
    return shapely.transform(shapes, lambda at: np.column_stack(georef.ground(at[:, 1], at[:, 0])))


def _select(outlines: Outlines, kept: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """Return which points the kept polygons have, and where their rings and polygons start."""
    if len(kept) == len(outlines.value):
        return slice(None), outlines.ring_start, outlines.polygon_start
    is_kept = np.zeros(len(outlines.value), np.bool_)
    is_kept[kept] = True
    rings_each, points_each = np.diff(outlines.polygon_start), np.diff(outlines.ring_start)
    ring_kept = np.repeat(is_kept, rings_each)
    ring_start = np.concatenate([[0], np.cumsum(points_each[ring_kept])])
    return np.repeat(ring_kept, points_each), ring_start, np.concatenate([[0], np.cumsum(rings_each[kept])])


def _refuse_no_place(target: Path, driver: str, georef: GeoRef) -> None:
    if driver == "GeoJSON" and georef.crs_wkt is None:
        raise OutputError(
            explain(
                f"{target} cannot be written as GeoJSON",
                "a map without a coordinate system",
                "a place on Earth, for GeoJSON is always in longitude and latitude",
                "write a .gpkg instead",
            )
        )


def _nodata_of(opened: DatasetReader, path: Path) -> frozenset[int]:
    if np.dtype(opened.dtypes[0]).kind not in "ui":
        raise DataError(
            explain(
                f"{path} is no class map", opened.dtypes[0], "integer class ids", "give the map of classes"
            )
        )
    return frozenset() if opened.nodata is None else frozenset({int(opened.nodata)})


def _open_confidence(path: Path | None) -> tuple[ReadRows | None, float | None, Callable[[], None]]:
    if path is None:
        return None, None, lambda: None
    opened = open_raster(os.fspath(path))
    full = 1.0 if np.dtype(opened.dtypes[0]).kind == "f" else float(CONFIDENCE_FULL)
    return _reader(opened, path), full, opened.close


def _reader(opened: DatasetReader, path: Path) -> ReadRows:
    from rasterio.errors import RasterioError
    from rasterio.windows import Window as Place

    def read(first: int, end: int) -> NDArray[Any]:
        try:
            pixels: NDArray[Any] = opened.read(1, window=Place(0, first, opened.width, end - first))
        except RasterioError as error:
            found = one_line(error.__cause__ or error)
            remedy = "make the map again"
            raise DataError(
                explain(f"{path} cannot be read at rows {first}-{end}", found, "whole pixels", remedy)
            ) from error
        return pixels

    return read
