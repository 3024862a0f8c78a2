"""A map and its polygons lie exactly where their scene does, however its file says where that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from numpy.typing import NDArray
from pyproj import Transformer
from rasterio.features import rasterize
from torch import Tensor, nn

import outsize

SHAPE = (45, 70)
CASES = {
    "half a pixel off": ("EPSG:32632", (2.0, 0.0, 500_001.0, 0.0, -2.0, 5_000_001.0)),
    "rotated": ("EPSG:32632", (1.6, 1.2, 500_000.0, 1.2, -1.6, 5_000_000.0)),
    "sheared": ("EPSG:32632", (2.0, 0.5, 500_000.0, -0.25, -3.0, 5_000_000.0)),
    "south up": ("EPSG:32632", (2.0, 0.0, 500_000.0, 0.0, 2.0, 5_000_000.0)),
    "pixel is point": ("EPSG:32632", (2.0, 0.0, 500_000.0, 0.0, -2.0, 5_000_000.0)),
    "degrees": ("EPSG:4326", (1e-5, 0.0, 10.000_005, 0.0, -2e-5, 60.0)),
}


class Brightest(nn.Module):
    """Names the brightest band, so that the map is known pixel by pixel."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the bands as logits."""
        return images * 1.0


def _write(path: Path, case: str) -> NDArray[np.uint8]:
    """Write a scene and return the classes that it shows; no side of the scene looks like another."""
    classes = np.zeros(SHAPE, np.uint8)
    classes[:9, :30], classes[20:33, 50:], classes[44:, :3], classes[12, 17] = 1, 2, 1, 2
    pixels = np.where(classes == np.arange(3)[:, None, None], 200, 50).astype(np.uint8)
    crs, transform = CASES[case]
    shape = {"count": 3, "height": SHAPE[0], "width": SHAPE[1]}
    place = {"crs": crs, "transform": rasterio.Affine(*transform)}
    with rasterio.open(path, "w", driver="GTiff", dtype="uint8", **shape, **place) as file:
        if case == "pixel is point":
            file.update_tags(AREA_OR_POINT="Point")
        file.write(pixels)
    return classes


def _polygons(path: Path) -> tuple[str, NDArray[Any], NDArray[Any]]:
    meta, _, geometry, columns = pyogrio.raw.read(path, columns=["value"])
    return meta["crs"], shapely.from_wkb(geometry), columns[0]


@pytest.mark.parametrize("case", CASES)
def test_map_and_polygons_share_the_grid_of_the_scene(tmp_path: Path, case: str) -> None:
    scene, target, vectors = (tmp_path / name for name in ("scene.tif", "map.tif", "map.gpkg"))
    classes = _write(scene, case)
    crs, transform = CASES[case]
    if case == "pixel is point":  # what the file says is the middle of its first pixel, half a pixel inward
        with rasterio.Env(GTIFF_POINT_GEO_IGNORE=True), rasterio.open(scene) as file:
            assert tuple(file.transform)[:6] == (2.0, 0.0, 500_001.0, 0.0, -2.0, 4_999_999.0)
    # tiles smaller than the scene: each must land in its own place
    outsize.predict(Brightest(), scene, target, polygons=vectors, limits={"tile_px": 32}, device="cpu")
    with rasterio.open(target) as file:
        assert file.crs == rasterio.crs.CRS.from_string(crs)
        assert tuple(file.transform)[:6] == pytest.approx(transform, rel=0, abs=1e-9)
        np.testing.assert_array_equal(file.read(1), classes)
    found_crs, shapes, values = _polygons(vectors)
    assert found_crs == crs
    grid = rasterio.Affine(*transform)
    burnt = rasterize(
        zip(shapes, values, strict=True), out_shape=SHAPE, transform=grid, fill=9, dtype="uint8"
    )
    np.testing.assert_array_equal(burnt, classes)
    # every corner is a corner of pixels, not merely nearer to one centre than to another
    x, y = shapely.get_coordinates(shapes).T
    col, row = ~grid @ (x, y)
    np.testing.assert_allclose(np.stack([row, col]), np.round(np.stack([row, col])), atol=1e-6)


@pytest.mark.parametrize("case", ["rotated", "south up", "pixel is point"])
def test_polygons_in_degrees_lie_there_too(tmp_path: Path, case: str) -> None:
    scene, vectors = tmp_path / "scene.tif", tmp_path / "map.geojson"
    classes = _write(scene, case)
    outsize.predict(Brightest(), scene, tmp_path / "map.tif", polygons=vectors, device="cpu")
    crs, transform = CASES[case]
    _, shapes, values = _polygons(vectors)
    back = Transformer.from_crs("EPSG:4326", crs, always_xy=True)
    shapes = shapely.transform(shapes, lambda xy: np.column_stack(back.transform(*xy.T)))
    grid = rasterio.Affine(*transform)
    burnt = rasterize(
        zip(shapes, values, strict=True), out_shape=SHAPE, transform=grid, fill=9, dtype="uint8"
    )
    np.testing.assert_array_equal(burnt, classes)
