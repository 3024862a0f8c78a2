"""Training windows: a function of seed, epoch and index alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from outsize.data.sample import IGNORE, Sample
from outsize.data.scenes import LabelledScene, label_table, open_scenes
from outsize.data.windows import TrainingWindows

WriteRaster = Callable[..., Path]
TABLE = label_table([0, 1, 2], ignore_value=255)


def _pair(write_raster: WriteRaster, name: str, height: int, width: int) -> tuple[LabelledScene, ...]:
    """A scene whose first band is 1 + its class, so that label and pixel can be compared anywhere."""
    rng = np.random.default_rng(len(name))
    classes = rng.integers(0, 3, (height, width)).astype(np.uint8)
    places = np.arange(height * width).reshape(height, width) % 60000
    path = write_raster(f"{name}.tif", np.stack([classes + 1, places]).astype(np.uint16), nodata=65535)
    write_raster(f"{name}_labels.tif", classes)
    return open_scenes([str(path)], "{stem}_labels.tif")


def _windows(scenes: tuple[LabelledScene, ...], seed: int = 1) -> TrainingWindows:
    return TrainingWindows(scenes, TABLE, tile_px=32, augmentations=("flip", "turn"), seed=seed)


def _same(one: Sample, other: Sample) -> bool:
    return all(
        np.array_equal(getattr(one, part), getattr(other, part)) for part in ("image", "valid", "labels")
    )


def test_a_sample_depends_on_seed_epoch_and_index_alone(write_raster: WriteRaster) -> None:
    scenes = _pair(write_raster, "a", 80, 100) + _pair(write_raster, "bb", 90, 60)
    windows = _windows(scenes)
    asked = [(epoch, index) for epoch in range(3) for index in range(12)]
    in_order = {each: windows.sample(*each) for each in asked}
    windows.close()
    again = _windows(scenes)
    with ThreadPoolExecutor(4) as pool:
        from_threads = list(pool.map(lambda each: again.sample(*each), reversed(asked)))
    again.close()
    assert all(
        _same(in_order[each], found) for each, found in zip(reversed(asked), from_threads, strict=True)
    )
    distinct = {sample.image.tobytes() for sample in in_order.values()}
    assert len(distinct) == len(asked)
    other = _windows(scenes, seed=2)
    assert not _same(other.sample(0, 0), in_order[0, 0])
    other.close()


def test_pixels_and_labels_are_of_one_place(write_raster: WriteRaster) -> None:
    windows = _windows(_pair(write_raster, "a", 80, 100))
    for index in range(20):
        sample = windows.sample(0, index)
        assert sample.valid.all()
        assert sample.image.shape == (2, 32, 32)
        np.testing.assert_array_equal(sample.image[0], sample.labels + 1)
    windows.close()


@pytest.mark.parametrize(("height", "width"), [(20, 100), (9, 7)])
def test_a_scene_smaller_than_the_window_is_padded_with_ignore(
    write_raster: WriteRaster, height: int, width: int
) -> None:
    windows = _windows(_pair(write_raster, "a", height, width))
    sample = windows.sample(0, 0)
    windows.close()
    assert sample.labels.shape == (32, 32)
    assert np.count_nonzero(sample.valid) == height * min(width, 32)
    assert (sample.labels[~sample.valid] == IGNORE).all()
    assert (sample.labels[sample.valid] < 3).all()


def test_invalid_pixels_are_never_learnt(write_raster: WriteRaster) -> None:
    pixels = np.ones((1, 64, 64), np.uint16)
    pixels[:, :, :40] = 0
    path = write_raster("a.tif", pixels, nodata=0)
    write_raster("a_labels.tif", np.ones((64, 64), np.uint8))
    windows = _windows(open_scenes([str(path)], "{stem}_labels.tif"))
    for index in range(30):
        sample = windows.sample(0, index)
        np.testing.assert_array_equal(sample.labels != IGNORE, sample.valid)
        assert sample.valid.any()  # drawn again until something is labelled
    windows.close()


def test_one_epoch_covers_the_scenes_by_default(write_raster: WriteRaster) -> None:
    windows = _windows(_pair(write_raster, "a", 64, 96) + _pair(write_raster, "bb", 32, 64))
    assert windows.samples_per_cover == 6 + 2
    windows.close()
