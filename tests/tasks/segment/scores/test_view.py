"""What is seen at a place is what the files hold there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import shapely

from outsize.data.sample import IGNORE
from outsize.data.scenes import label_table, open_scenes
from outsize.raster.polygons import AreaOfInterest
from outsize.tasks.segment.scores.view import view_window
from outsize.tiles.window import Window


def test_picture_truth_and_prediction_of_a_window(write_raster: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    labels, classes = rng.choice(np.uint8([3, 8]), (2, 50, 60))
    bands = np.stack([np.arange(3000.0).reshape(50, 60), np.zeros((50, 60))]).astype(np.uint16)
    path = write_raster("a.tif", bands, names=("red", "nir"))
    write_raster("a_labels.tif", labels)
    (scene,) = open_scenes([str(path)], "{stem}_labels.tif")
    scene = replace(scene, areas=(Window(0, 0, 30, 60),))
    inside = AreaOfInterest(Path("x"), np.array([shapely.box(20, 0, 60, 50)]))
    table, window = label_table([8, 3], ignore_value=255), Window(10, 5, 30, 40)
    map_path = write_raster("map.tif", classes, nodata=255)
    picture, truth, predicted = view_window(scene, map_path, window, table, inside=inside)
    counted = np.zeros((50, 60), bool)
    counted[:30, 20:] = True
    expected = np.where(counted, np.where(labels == 8, 0, 1), IGNORE)
    np.testing.assert_array_equal(truth, expected[window.slices])
    np.testing.assert_array_equal(predicted, np.where(classes == 8, 0, 1)[window.slices])
    assert picture.shape == (30, 40, 3)
    assert picture.min() == 0
    assert picture.max() == 1
