"""Burns polygons into a raster of class values on a scene's grid, window by window."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outsize.errors import DataError, explain, listed
from outsize.raster.labels import is_made_of, not_on_scene, write_labels
from outsize.raster.polygons import layers
from outsize.raster.reading import SceneInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from outsize.tiles.window import Window


@dataclass(frozen=True)
class PolygonLabels:
    """A vector file and what its polygons mean.

    With `attribute`, a polygon's class is looked up in `values`; without, all polygons get `values[""]`.
    """

    path: Path
    layer: str | None
    attribute: str | None
    values: Mapping[str, int]
    outside_value: int | None  # of pixels in no polygon; None: they are ignored


def burn_labels(
    labels: PolygonLabels, scene: SceneInfo, target: Path, *, ignore_value: int, key: str
) -> None:
    """Write the class value of each pixel of the scene; where polygons overlap, the later one counts.

    A pixel belongs to the polygon that its centre lies in. Where labels made of the same `key` are there, they stay.
    """
    if is_made_of(target, key):
        return
    import rasterio
    import shapely
    from rasterio.features import rasterize

    shapes, values = read_polygons(labels, scene)
    tree = shapely.STRtree(shapes)
    fill = ignore_value if labels.outside_value is None else labels.outside_value

    def make(window: Window) -> NDArray[np.uint8]:
        corners = [
            scene.georef.ground(row, col)
            for row in (window.row, window.row_end)
            for col in (window.col, window.col_end)
        ]
        x, y = [point[0] for point in corners], [point[1] for point in corners]
        out = np.full((window.height, window.width), fill, np.uint8)
        here = np.sort(tree.query(shapely.box(min(x), min(y), max(x), max(y))))
        if len(here):
            grid = rasterio.Affine(*scene.georef.shifted(window).transform)
            rasterize([(shapes[i], int(values[i])) for i in here], out=out, transform=grid)
        return out

    write_labels(target, scene, ignore_value, key, make)


def list_attributes(path: Path, layer: str | None) -> tuple[str, ...]:
    """Return the names of the attributes of a vector file."""
    with layers.opened(path, "labels") as source:
        return tuple(str(name) for name in _describe(path, source, layer)["fields"])


def attribute_values(path: Path, layer: str | None, attribute: str) -> Counter[str]:
    """Count the polygons of each value of an attribute."""
    with layers.opened(path, "labels") as source:
        _, _, columns = layers.read_layer(source, layer, [attribute])
    return Counter(_as_text(value) for value in columns[0])


def _describe(path: Path, source: str, layer: str | None) -> dict[str, Any]:
    names = layers.layer_names(source)
    if layer is None and len(names) != 1:
        need, remedy = "one layer", "name it in data.layer"
        found = ", ".join(names) or "none"
        raise DataError(explain(f"labels {path} have several layers", found, need, remedy))
    if layer is not None and layer not in names:
        near = _nearest(layer, names)
        remedy = f"set data.layer = {near[0]!r}" if near else "export the labels again"
        need = f"one of {', '.join(names)}" if near else "a layer"
        raise DataError(explain(f"labels {path} have no such layer", repr(layer), need, remedy))
    return layers.describe_layer(source, layer)


def read_polygons(labels: PolygonLabels, scene: SceneInfo) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read the polygons on the scene, in its coordinate system, each with its class value."""
    with layers.opened(labels.path, "labels") as source:
        return _read_polygons(source, labels, scene)


def _read_polygons(
    source: str, labels: PolygonLabels, scene: SceneInfo
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    import shapely

    about = _describe(labels.path, source, labels.layer)
    if labels.attribute is not None:
        _refuse_attribute(labels.path, labels.attribute, [str(name) for name in about["fields"]])
    forward, extent = _transformer(labels.path, about["crs"], scene)
    bounds = about["total_bounds"]
    columns = [] if labels.attribute is None else [labels.attribute]
    # The extent is only a first sieve: an outline that bulges between its corners is wider than they are.
    wide = _widened(extent)
    _, shapes, found = layers.read_layer(source, labels.layer, columns, wide)
    kept = ~shapely.is_missing(shapes) & ~shapely.is_empty(shapes) & layers.are_finite(shapes)
    shapes = shapes[kept]
    _refuse_other_shapes(labels.path, shapes)
    if forward is not None:
        shapes = shapely.transform(shapes, lambda points: np.column_stack(forward(*points.T)))
    on_scene = shapely.intersects(shapes, outline_of(scene))
    if not on_scene.any() and (labels.outside_value is None or not _overlap(bounds, wide)):
        raise not_on_scene(labels.path, scene.path, f"no polygon on it, labels reach over {_short(bounds)}")
    shapes = shapes[on_scene]
    if labels.attribute is None:
        return shapes, np.full(len(shapes), labels.values[""], np.uint8)
    texts = [_as_text(value) for value in found[0][kept][on_scene]]
    _refuse_values(labels, texts)
    return shapes, np.array([labels.values[text] for text in texts], np.uint8)


def _transformer(path: Path, crs: str | None, scene: SceneInfo) -> tuple[Any, NDArray[np.float64]]:
    """Return how points of the labels come onto the scene (None: as they are), and the scene's extent in theirs."""
    import pyproj
    import shapely

    outline = shapely.get_coordinates(shapely.segmentize(outline_of(scene), _step(scene)))
    theirs, ours = crs, scene.georef.crs_wkt
    if (theirs is None) != (ours is None):
        which, remedy = (
            (path, "state it (a .prj file, ogr2ogr -a_srs)")
            if theirs is None
            else (scene.path, "give a georeferenced scene, or labels as a raster")
        )
        need = "a coordinate system on both sides"
        raise DataError(explain(f"{which} has no place on Earth", "no coordinate system", need, remedy))
    if theirs is None or ours is None:
        return None, _bounds(outline)
    source, target = pyproj.CRS.from_user_input(theirs), pyproj.CRS.from_wkt(ours)
    if source.equals(target, ignore_axis_order=True):
        return None, _bounds(outline)
    there = pyproj.Transformer.from_crs(target, source, always_xy=True)
    back = pyproj.Transformer.from_crs(source, target, always_xy=True)
    return back.transform, _bounds(np.column_stack(there.transform(*outline.T)))


def outline_of(scene: SceneInfo) -> Any:
    """Return the outline of a scene on the ground."""
    import shapely

    height, width = scene.height, scene.width
    return shapely.Polygon(
        [scene.georef.ground(row, col) for row, col in ((0, 0), (0, width), (height, width), (height, 0))]
    )


def _step(scene: SceneInfo) -> float:
    rows, cols = scene.georef.resolution
    return max(rows * scene.height, cols * scene.width) / 16


def _bounds(points: NDArray[np.float64]) -> NDArray[np.float64]:
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) == 0:
        return np.array([np.inf, np.inf, -np.inf, -np.inf])
    return np.concatenate([points.min(axis=0), points.max(axis=0)])


def _widened(extent: NDArray[np.float64]) -> tuple[float, float, float, float]:
    margin = 0.02 * float(np.nan_to_num(extent[2:] - extent[:2], neginf=0).max())
    left, bottom, right, top = (float(value) for value in extent)
    return left - margin, bottom - margin, right + margin, top + margin


def _overlap(bounds: tuple[float, ...], wide: tuple[float, float, float, float]) -> bool:
    return bounds[0] <= wide[2] and bounds[2] >= wide[0] and bounds[1] <= wide[3] and bounds[3] >= wide[1]


def _short(bounds: tuple[float, ...]) -> str:
    left, bottom, right, top = bounds
    return f"x {left:.6g} to {right:.6g}, y {bottom:.6g} to {top:.6g}"


def _refuse_other_shapes(path: Path, shapes: NDArray[Any]) -> None:
    import shapely

    kinds = shapely.get_type_id(shapes)
    others = sorted({shape.geom_type for shape in shapes[~np.isin(kinds, (3, 6))]})
    if others:
        remedy = "keep the polygons alone, or give lines a width (buffer)"
        raise DataError(explain(f"labels {path} are no polygons", ", ".join(others), "polygons", remedy))


def _refuse_attribute(path: Path, attribute: str, fields: list[str]) -> None:
    if attribute not in fields:
        near = _nearest(attribute, fields)
        need = f"one of {', '.join(near)}" if near else "an attribute that names the class"
        remedy = f"set data.attribute = {near[0]!r}" if near else "set data.all_polygons instead"
        raise DataError(explain(f"labels {path} have no such attribute", repr(attribute), need, remedy))


def _refuse_values(labels: PolygonLabels, texts: list[str]) -> None:
    unknown = Counter(text for text in texts if text not in labels.values)
    if unknown:
        found = listed([f"{text!r} in {count} polygons" for text, count in unknown.most_common()])
        raise DataError(
            explain(
                f"attribute {labels.attribute!r} of {labels.path} has values in no class",
                found,
                f"one of {', '.join(map(repr, labels.values))}",
                "add a class whose `attribute` is that value",
            )
        )


def _nearest(name: str, known: list[str]) -> list[str]:
    """Sort names, the most similar first."""
    return sorted(known, key=lambda each: -difflib.SequenceMatcher(None, name.lower(), each.lower()).ratio())


def _as_text(value: object) -> str:
    """Write an attribute's value as a job file would: 3.0 is "3", nothing is ""."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
