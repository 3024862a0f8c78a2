"""Band statistics against plain numpy, and the windows in which a scene is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outsize.data.statistics import from_sums, num_windows, windows_of
from outsize.raster.reading import describe


def test_against_numpy() -> None:
    values = np.random.default_rng(3).gamma(2, 400, (3, 5000))
    found = from_sums(5000, values.sum(1), (values**2).sum(1))
    np.testing.assert_allclose(found.mean, values.mean(1), rtol=1e-12)
    np.testing.assert_allclose(found.std, values.std(1), rtol=1e-9)


@pytest.mark.parametrize("value", [1000.1, 0.1, -3e5, 0.0])
def test_a_constant_band_is_left_at_its_mean(value: float) -> None:
    values = np.full(90_300, value, np.float32).astype(np.float64)
    found = from_sums(values.size, values.sum(keepdims=True), (values**2).sum(keepdims=True))
    assert found.std == (1.0,)
    assert found.mean[0] == pytest.approx(np.float32(value), rel=1e-6)


def test_windows_cover_a_scene_once(write_raster: Callable[..., Path]) -> None:
    scene = describe(write_raster("a.tif", np.ones((1, 1100, 1030), np.uint8)))
    covered = np.zeros((1100, 1030), int)
    for window in windows_of(scene):
        covered[window.slices] += 1
    assert (covered == 1).all()
    assert num_windows([scene]) == len(windows_of(scene)) == 4
