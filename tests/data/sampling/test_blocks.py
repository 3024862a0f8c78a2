"""Classes counted block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import outsize.data.sampling.blocks as blocks_module
from outsize.data.sample import IGNORE
from outsize.data.sampling.blocks import areas_of, count_blocks, index_blocks
from outsize.data.scenes import LabelledScene, label_table, open_scenes
from outsize.errors import DataError
from outsize.tiles.window import Window

WriteRaster = Callable[..., Path]
TABLE = label_table([10, 20, 30], ignore_value=255)
VALUES = np.array([10, 20, 30, 255], np.uint8)


def _scene(write_raster: WriteRaster, name: str, indices: np.ndarray) -> LabelledScene:
    path = write_raster(f"{name}.tif", np.ones(indices.shape, np.uint8))
    write_raster(f"{name}_labels.tif", VALUES[indices])
    return open_scenes([str(path)], "{stem}_labels.tif")[0]


def test_blocks_against_slices() -> None:
    labels = np.random.default_rng(0).choice(np.array([0, 1, 2, IGNORE], np.uint8), (20, 13))
    found = count_blocks(labels, 3, 8)
    expected = [
        [np.count_nonzero(labels[row : row + 8, col : col + 8] == each) for each in range(3)]
        for row in range(0, 20, 8)
        for col in range(0, 13, 8)
    ]
    np.testing.assert_array_equal(found, expected)


def test_every_labelled_pixel_of_every_area_is_counted_once(
    write_raster: WriteRaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_module, "_READ_PX", 32)  # several reads
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 4, (70, 90)), rng.integers(0, 4, (40, 50))
    second[:16, :16] = 3  # a block without a label
    areas = (Window(3, 5, 30, 41), Window(40, 0, 30, 90))
    scenes = (
        replace(_scene(write_raster, "a", first), areas=areas),
        _scene(write_raster, "b", second),
    )
    index = index_blocks(scenes, TABLE, 3, block_px=16, num_threads=2)
    every = [(0, first, areas[0]), (0, first, areas[1]), (1, second, Window(0, 0, 40, 50))]
    for number, (_, labels, area) in enumerate(every):
        inside = index.areas == number
        counted = np.bincount(labels[area.slices].ravel(), minlength=4)[:3]
        np.testing.assert_array_equal(index.num_px[inside].sum(0), counted)
        for window in index.windows[inside]:
            block = Window(*window.tolist())
            assert block.intersect(area) == block
    for (row, col, height, width), number, num_px in zip(
        index.windows.tolist(), index.areas, index.num_px, strict=True
    ):
        labels = every[number][1][row : row + height, col : col + width]
        np.testing.assert_array_equal(num_px, np.bincount(labels.ravel(), minlength=4)[:3])
        assert max(height, width) <= 16
    assert index.num_px.any(1).all()
    assert not (index.windows[index.areas == 2] == [0, 0, 16, 16]).all(1).any()
    np.testing.assert_array_equal(
        index.of_scenes, [sum(index.num_px[index.areas == n].sum(0) for n in (0, 1)), counted]
    )


def test_a_scene_without_areas_is_all_one_area(write_raster: WriteRaster) -> None:
    scene = _scene(write_raster, "a", np.zeros((7, 9), np.int64))
    assert areas_of(scene) == (Window(0, 0, 7, 9),)
    some = (Window(1, 1, 2, 2),)
    assert areas_of(replace(scene, areas=some)) == some


def test_nothing_labelled_is_refused(write_raster: WriteRaster) -> None:
    scene = _scene(write_raster, "a", np.full((20, 20), 3))
    with pytest.raises(DataError, match=r"no pixel is labelled in .*a_labels.tif.*check data.labels"):
        index_blocks([scene], TABLE, 3, block_px=8, num_threads=1)
