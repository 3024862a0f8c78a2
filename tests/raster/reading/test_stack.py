"""Bands in files of their own become one scene: on the finest grid, whatever window is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from outsize.errors import DataError
from outsize.raster.reading import SceneReader, stack_bands
from outsize.tiles.window import Window


def write(path: Path, pixels: np.ndarray, res_m: float, **changes: Any) -> Path:
    grid = rasterio.Affine(res_m, 0, 5e5, 0, -res_m, 5e6)
    height, width = pixels.shape
    profile = {"driver": "GTiff", "dtype": pixels.dtype, "count": 1, "height": height, "width": width}
    with rasterio.open(path, "w", **{**profile, "crs": "EPSG:32632", "transform": grid, **changes}) as file:
        file.write(pixels, 1)
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    fine = rng.integers(1, 4000, (240, 360), dtype=np.uint16)
    coarse = np.add.outer(np.arange(120) * 20, np.arange(180) * 10).astype(np.uint16) + 100
    return {
        "swir": write(tmp_path / "b11.tif", coarse, 20, nodata=0),
        "red": write(tmp_path / "b04.tif", fine, 10, nodata=0),
    }


def test_coarse_bands_are_made_finer_bilinearly(tmp_path: Path, files: dict[str, Path]) -> None:
    info = stack_bands(tmp_path, files)
    assert (info.height, info.width, info.num_bands) == (240, 360, 2)
    assert info.band_names == ("swir", "red")
    assert info.nodata == 0
    assert info.georef.transform == (10, 0, 5e5, 0, -10, 5e6)
    with SceneReader(info) as reader:
        pixels = reader.read(info.window).pixels
    with rasterio.open(files["red"]) as file:
        assert (pixels[1] == file.read(1)).all()
    # a ramp stays a ramp: half a coarse pixel to the left of a coarse centre is a quarter of its step below it
    rows, cols = np.mgrid[2:238, 2:358]
    ramp = 100 + 20 * ((rows + 0.5) / 2 - 0.5) + 10 * ((cols + 0.5) / 2 - 0.5)
    assert np.abs(pixels[0, 2:238, 2:358] - ramp).max() <= 0.5


def test_every_window_reads_the_same_pixels(tmp_path: Path, files: dict[str, Path]) -> None:
    info = stack_bands(tmp_path, files)
    with SceneReader(info) as reader:
        whole = reader.read(info.window).pixels
        for window in (Window(0, 0, 50, 50), Window(37, 51, 128, 99), Window(101, 255, 139, 105)):
            assert (reader.read(window).pixels == whole[(slice(None), *window.slices)]).all(), window


def test_nodata_is_left_out_of_the_mean(tmp_path: Path) -> None:
    coarse = np.full((20, 20), 1000, np.uint16)
    coarse[5:15, 5:15] = 0
    files = {"a": write(tmp_path / "a.tif", np.full((40, 40), 7, np.uint16), 10, nodata=0)}
    files["b"] = write(tmp_path / "b.tif", coarse, 20, nodata=0)
    info = stack_bands(tmp_path, files)
    with SceneReader(info) as reader:
        found = reader.read(info.window).pixels[1]
    assert set(np.unique(found)) == {0, 1000}  # nothing in between


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crs": "EPSG:32633"}, "another coordinate system"),
        ({"dtype": "int16"}, "found int16, needed uint16"),
        ({"nodata": 9}, "found nodata 9.0, needed nodata 0.0"),
        ({"transform": rasterio.Affine(20, 0, 5e5 + 40, 0, -20, 5e6)}, "corners 4.0 px away"),
    ],
)
def test_a_band_that_does_not_fit_is_named(
    tmp_path: Path, files: dict[str, Path], changes: dict[str, Any], message: str
) -> None:
    pixels = np.ones((120, 180), changes.get("dtype", "uint16"))
    files["odd"] = write(tmp_path / "odd.tif", pixels, 20, **{"nodata": 0, **changes})
    with pytest.raises(DataError, match=rf"band odd .*odd\.tif.*{message}"):
        stack_bands(tmp_path, files)
