"""A raster of ids has each object's pixels, on the grid of the scene."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from tests.raster.vectors.test_object_layers import UTM, Thing, scene

from outsize.raster.writing import object_ids, write_ids
from outsize.tiles.window import Window


def test_the_surer_object_is_above_and_strips_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_ids, "_BLOCK_PX", 16)
    info = scene(tmp_path / "scene.tif", "EPSG:32633", UTM)
    things = [
        Thing(0, Window(2, 3, 40, 10), np.ones((40, 10), np.bool_), 0.9),
        Thing(1, Window(10, 8, 5, 30), np.ones((5, 30), np.bool_), 0.4),
    ]
    write_ids(tmp_path / "ids.tif", things, info)
    expected = np.zeros((60, 80), np.int32)
    expected[10:15, 8:38] = 2
    expected[2:42, 3:13] = 1
    with rasterio.open(tmp_path / "ids.tif") as file:
        assert (file.read(1) == expected).all()
        assert (file.crs.to_epsg(), file.transform, file.nodata) == (32633, UTM, 0)


def test_a_scene_without_a_place_has_ids_too(tmp_path: Path) -> None:
    info = scene(tmp_path / "scene.tif", None, UTM)
    write_ids(tmp_path / "ids.tif", [], info)
    with rasterio.open(tmp_path / "ids.tif") as file:
        assert not file.read(1).any()
        assert file.shape == (60, 80)
