"""Band statistics against plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outsize.data.statistics import measure_bands, num_windows
from outsize.errors import DataError
from outsize.progress import Reporter
from outsize.raster.read import describe

WriteRaster = Callable[..., Path]


def _scene(nodata: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    pixels = (rng.gamma(2, 400, (3, 1100, 90)) + 1).astype(np.uint16)
    pixels[:, 40:300, 10:50] = nodata
    return pixels


def test_against_numpy_over_several_scenes(write_raster: WriteRaster) -> None:
    first, second = _scene(0), _scene(0)[:, :200] * 3
    paths = [write_raster(f"{n}.tif", each, nodata=0) for n, each in enumerate((first, second))]
    scenes = [describe(path) for path in paths]
    with Reporter("quiet").bar("statistics", num_windows(scenes), "window") as bar:
        found = measure_bands(scenes, num_threads=2, bar=bar)
    assert (num_windows(scenes), bar.done) == (3, 3)
    values = np.concatenate([each[:, (each != 0).any(axis=0)] for each in (first, second)], axis=1)
    np.testing.assert_allclose(found.mean, values.mean(axis=1, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(found.std, values.std(axis=1, dtype=np.float64), rtol=1e-9)


def test_the_nodata_value_changes_nothing(write_raster: WriteRaster) -> None:
    found = [
        measure_bands([describe(write_raster(f"{nodata}.tif", _scene(nodata), nodata=nodata))], num_threads=1)
        for nodata in (0, 65535)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("value", [1000.1, 0.1, -3e5, 0.0])
def test_a_constant_band_is_left_at_its_mean(write_raster: WriteRaster, value: float) -> None:
    pixels = np.full((1, 300, 301), value, np.float32)
    found = measure_bands([describe(write_raster("c.tif", pixels))], num_threads=1)
    assert found.std == (1.0,)
    assert found.mean[0] == pytest.approx(np.float32(value), rel=1e-6)


def test_a_scene_without_valid_pixels_is_named(write_raster: WriteRaster) -> None:
    scenes = [
        describe(write_raster(name, pixels, nodata=0))
        for name, pixels in (("full.tif", _scene(0)), ("empty.tif", np.zeros((3, 40, 40), np.uint16)))
    ]
    with pytest.raises(DataError, match=r"empty\.tif has no valid pixel"):
        measure_bands(scenes, num_threads=1)
