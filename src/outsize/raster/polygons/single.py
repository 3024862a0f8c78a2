"""Burns polygons one by one, each in a window of its own on a scene's grid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from outsize.raster.polygons.burn import PolygonLabels, outline_of, read_polygons
from outsize.raster.reading import SceneInfo
from outsize.tiles.window import Window

if TYPE_CHECKING:
    from numpy.typing import NDArray


def burn_single(
    labels: PolygonLabels, scene: SceneInfo
) -> Iterator[tuple[int, Window, NDArray[np.bool_], bool]]:
    """Yield class value, window and mask of each polygon on a scene, and whether the scene's border cuts it.

    A pixel belongs to a polygon that its centre lies in: a mask may be empty. A feature of several parts is one.
    """
    import rasterio
    import shapely
    from rasterio.features import rasterize

    shapes, values = read_polygons(labels, scene)
    outline = outline_of(scene)
    shapely.prepare(outline)
    whole = shapely.covers(outline, shapes)
    for shape, value, is_whole in zip(shapes, values.tolist(), whole.tolist(), strict=True):
        window = _window_around(shapely.bounds(shape), scene)
        mask = np.zeros((window.height, window.width), np.uint8)
        if window.num_px:
            grid = rasterio.Affine(*scene.georef.shifted(window).transform)
            rasterize([(shape, 1)], out=mask, transform=grid)
        yield value, window, mask.astype(np.bool_), not is_whole


def _window_around(bounds: NDArray[np.float64], scene: SceneInfo) -> Window:
    """Return the pixels of a scene that a box on the ground touches; its grid may be turned against the box."""
    left, bottom, right, top = bounds
    x, y = np.array([left, left, right, right]), np.array([bottom, top, bottom, top])
    rows, cols = scene.georef.pixel(x, y)
    row, col = int(np.floor(rows.min())), int(np.floor(cols.min()))
    height, width = int(np.ceil(rows.max())) - row, int(np.ceil(cols.max())) - col
    return Window(row, col, height, width).intersect(scene.window)
