"""An area of interest: polygons of any coordinate system, laid on the grid of a scene."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain, one_line
from outsize.raster.polygons import layers
from outsize.raster.reading import SceneInfo
from outsize.tiles.window import Window

_PARTS = 200  # pieces along an area's longer side: straight lines bend when they are reprojected


@dataclass(frozen=True)
class AreaOfInterest:
    """Polygons in columns and rows of one scene; a pixel is inside where its centre is."""

    path: Path
    shapes: NDArray[Any]  # of shapely

    @property
    def key(self) -> str:
        """A text that differs for areas that differ."""
        import shapely

        return hashlib.sha256(b"".join(shapely.to_wkb(self.shapes))).hexdigest()

    def meets(self, window: Window) -> bool:
        """Say whether any of a window may be inside."""
        return bool(self._near(window).size)

    def mask(self, window: Window) -> NDArray[np.bool_]:
        """Say which pixels of a window are inside."""
        from affine import Affine
        from rasterio.features import rasterize

        near = self._near(window)
        shape = (window.height, window.width)
        if not near.size:
            return np.zeros(shape, np.bool_)
        place = Affine.translation(window.col, window.row)
        burnt: NDArray[np.uint8] = rasterize(list(near), out_shape=shape, transform=place, dtype="uint8")
        return burnt.astype(np.bool_)

    def _near(self, window: Window) -> NDArray[Any]:
        import shapely

        box = shapely.box(window.col, window.row, window.col_end, window.row_end)
        near: NDArray[Any] = self.shapes[shapely.intersects(self.shapes, box)]
        return near


def open_aoi(path: Path, info: SceneInfo) -> AreaOfInterest | None:
    """Lay the polygons of a file on a scene's grid; None where they miss the scene."""
    import pyproj
    import shapely
    from pyproj.exceptions import ProjError

    shapes, crs_wkt = _read(path)
    if info.georef.crs_wkt is None:
        remedy = "give a scene with a coordinate system, or leave --aoi out"
        need = "a place on Earth, to lay the area on"
        raise DataError(
            explain(
                f"area {path} cannot be laid on {info.path}",
                "no coordinate system in the scene",
                need,
                remedy,
            )
        )
    try:
        to_scene = pyproj.Transformer.from_crs(
            pyproj.CRS.from_user_input(crs_wkt), pyproj.CRS.from_wkt(info.georef.crs_wkt), always_xy=True
        )
    except ProjError as error:
        need, remedy = "a known coordinate system", "reproject it (ogr2ogr -t_srs)"
        raise DataError(explain(f"area {path} cannot be laid", one_line(error), need, remedy)) from error

    def to_pixels(points: NDArray[np.float64]) -> NDArray[np.float64]:
        x, y = to_scene.transform(points[:, 0], points[:, 1])
        rows, cols = info.georef.pixel(np.asarray(x), np.asarray(y))
        return np.column_stack([cols, rows])

    try:
        left, bottom, right, top = shapely.total_bounds(shapes)
        extent = max(right - left, top - bottom)
        fine = shapely.segmentize(shapes, extent / _PARTS) if extent else shapes
        laid = shapely.transform(fine, to_pixels)
        # what lies beyond the reach of the scene's projection has no place on its grid
        area = AreaOfInterest(path, shapely.make_valid(laid[layers.are_finite(laid)]))
        return area if area.meets(info.window) else None
    except (ProjError, shapely.errors.ShapelyError) as error:
        raise DataError(
            explain(
                f"area {path} cannot be reprojected", one_line(error), "a known projection", "reproject it"
            )
        ) from error


def _read(path: Path) -> tuple[NDArray[Any], str]:
    """Return the polygons of a file and their coordinate system."""
    import shapely

    with layers.opened(path, "area") as source:
        names = layers.layer_names(source)
        if len(names) != 1:
            remedy = "save the layer of the area alone"
            found = f"layers {', '.join(names) or 'of no name'}"
            raise DataError(explain(f"area {path} is not clear", found, "one layer", remedy))
        crs, shapes, _ = layers.read_layer(source, names[0])
    shapes = shapes[~shapely.is_missing(shapes) & layers.are_finite(shapes)]
    shapes = shapes[shapely.get_dimensions(shapes) == 2] if len(shapes) else np.array([], object)
    if not len(shapes) or crs is None:
        found = "no coordinate system" if len(shapes) else "no polygon"
        need, remedy = "polygons that say where they are", "draw it again in a GIS"
        raise DataError(explain(f"area {path} has no place", found, need, remedy))
    return shapes, str(crs)
