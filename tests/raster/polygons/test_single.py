"""Polygons burnt one by one are those burnt together, each in its own window."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio

from outsize.raster.polygons import PolygonLabels, burn_single
from outsize.raster.reading import SceneInfo, describe


def scene_at(path: Path, grid: rasterio.Affine) -> SceneInfo:
    form = {"driver": "GTiff", "height": 60, "width": 80, "count": 1, "dtype": "uint8"}
    with rasterio.open(path, "w", crs="EPSG:32633", transform=grid, **form) as out:
        out.write(np.zeros((60, 80), np.uint8), 1)
    return describe(path)


def save(path: Path, grid: rasterio.Affine, rings: list[list[tuple[float, float]]]) -> PolygonLabels:
    features = [
        {
            "type": "Feature",
            "properties": {},
            "geometry": {"type": "Polygon", "coordinates": [[grid @ corner for corner in (*ring, ring[0])]]},
        }
        for ring in rings
    ]
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}
    path.write_text(json.dumps({"type": "FeatureCollection", "crs": crs, "features": features}))
    return PolygonLabels(path, None, None, {"": 7}, None)


@pytest.mark.parametrize("angle", [0, 30, 200])
def test_each_polygon_lies_where_it_is_drawn_also_on_a_turned_grid(tmp_path: Path, angle: int) -> None:
    grid = rasterio.Affine.translation(500_000, 5_000_000) @ rasterio.Affine.rotation(angle)
    grid = grid @ rasterio.Affine.scale(2, -2)
    # columns and rows; the second is a triangle, the third reaches over the left edge, the fourth holds no centre
    rings = [[(10, 20), (30, 20), (30, 34), (10, 34)], [(40.2, 5.1), (70.3, 9.4), (50.8, 41.7)]]
    rings += [[(-5, 50), (6, 50), (6, 55), (-5, 55)], [(2.1, 2.1), (2.3, 2.1), (2.2, 2.3)]]
    labels = save(tmp_path / "a.geojson", grid, rings)
    scene = scene_at(tmp_path / "a.tif", grid)
    found = list(burn_single(labels, scene))
    assert [value for value, *_ in found] == [7] * 4
    assert [clipped for *_, clipped in found] == [False, False, True, False]
    shapes = [
        {"type": "Polygon", "coordinates": [[grid @ corner for corner in (*ring, ring[0])]]} for ring in rings
    ]
    for shape, (_, window, mask, _) in zip(shapes, found, strict=True):
        whole = np.zeros((60, 80), np.bool_)
        whole[window.slices] = mask
        wanted = rasterio.features.rasterize([(shape, 1)], out_shape=(60, 80), transform=grid)
        assert np.array_equal(whole, wanted.astype(np.bool_))
    assert [int(mask.sum()) for _, _, mask, _ in found][::2] == [280, 30]
    assert not found[3][2].any()
