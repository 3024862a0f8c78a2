from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import rasterio
from rasterio import shutil as raster_shutil
from rasterio.enums import ColorInterp

from outsize.errors import DataError
from outsize.raster.reading import SceneReader, describe
from outsize.tiles.window import Window

RNG = np.random.default_rng(0)
GRID = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0.5, 500_000, 0.25, -10, 5_000_000)}
TILED = {"tiled": True, "blockxsize": 64, "blockysize": 64}


def write(path, pixels, **options):
    shape = {"count": pixels.shape[0], "height": pixels.shape[1], "width": pixels.shape[2]}
    with rasterio.open(
        path, "w", driver="GTiff", dtype=pixels.dtype, **{**shape, **GRID, **TILED, **options}
    ) as file:
        file.write(pixels)
    return path


def read(path, window=None):
    info = describe(path)
    with SceneReader(info) as reader:
        return reader.read(window or info.window)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_pixels_and_place_come_back(tmp_path, dtype):
    pixels = RNG.integers(0, 200, (5, 150, 170)).astype(dtype)
    path = write(tmp_path / "a.tif", pixels)
    with rasterio.open(path, "r+") as file:
        file.descriptions = ("blue", "green", "red", "nir", "")
    info = describe(path)
    assert (info.height, info.width, info.num_bands, info.dtype, info.block) == (150, 170, 5, dtype, (64, 64))
    assert info.band_names == ("blue", "green", "red", "nir", "")
    assert info.georef.transform == tuple(GRID["transform"])[:6]
    raster = read(path, Window(13, 21, 100, 90))
    np.testing.assert_array_equal(raster.pixels, pixels[:, 13:113, 21:111])
    assert raster.valid.all()
    assert raster.georef.ground(0, 0) == info.georef.ground(13, 21)


@pytest.mark.parametrize("corner", [(-20, -30), (100, 130), (-20, 130)])
def test_window_over_an_edge_is_zero_and_invalid_there(tmp_path, corner):
    pixels = RNG.integers(1, 255, (3, 150, 170), dtype=np.uint8)
    raster = read(write(tmp_path / "a.tif", pixels), Window(*corner, 100, 90))
    whole = np.zeros((3, 400, 400), np.uint8)
    whole[:, 100:250, 100:270] = pixels
    rows, cols = (slice(corner[0] + 100, corner[0] + 200), slice(corner[1] + 100, corner[1] + 190))
    np.testing.assert_array_equal(raster.pixels, whole[:, rows, cols])
    np.testing.assert_array_equal(raster.valid, whole[0, rows, cols] > 0)


def test_read_into_a_part_of_a_larger_array_and_as_float(tmp_path):
    pixels = RNG.integers(0, 60_000, (2, 100, 100), dtype=np.uint16)
    batch, valid = np.full((2, 2, 60, 80), -1, np.float32), np.zeros((2, 60, 80), np.bool_)
    with SceneReader(describe(write(tmp_path / "a.tif", pixels))) as reader:
        reader.read_into(Window(30, 10, 60, 80), batch[1], valid[1])
        with pytest.raises(ValueError, match="fit"):
            reader.read_into(Window(30, 10, 60, 81), batch[1], valid[1])
    np.testing.assert_array_equal(batch[1], pixels[:, 30:90, 10:90])
    assert (batch[0] == -1).all()
    assert valid[1].all()
    assert not valid[0].any()


def test_many_threads_read_the_same_pixels(tmp_path):
    pixels = RNG.integers(0, 255, (3, 400, 400), dtype=np.uint8)
    windows = [Window(row, col, 70, 70) for row in range(0, 400, 35) for col in range(0, 400, 35)]
    with (
        SceneReader(describe(write(tmp_path / "a.tif", pixels, compress="deflate"))) as reader,
        ThreadPoolExecutor(4) as pool,
    ):
        rasters = list(pool.map(reader.read, windows))
    for window, raster in zip(windows, rasters, strict=True):
        part = pixels[:, window.row : window.row_end, window.col : window.col_end]
        np.testing.assert_array_equal(raster.pixels[:, : part.shape[1], : part.shape[2]], part)


@pytest.mark.parametrize(
    ("dtype", "nodata", "one_band_spoils"),
    [
        ("uint8", 0, False),
        ("uint8", 255, False),
        ("uint16", 0, False),
        ("uint16", 65535, True),
        ("int16", -9999, True),
        ("float32", -9999, True),
        ("float32", float("nan"), True),
        ("float32", 0, False),
    ],
)
def test_nodata_in_one_band_and_in_all(tmp_path, dtype, nodata, one_band_spoils):
    pixels = RNG.integers(1, 200, (3, 80, 80)).astype(dtype)
    pixels[1, 10, 10] = nodata
    pixels[:, 20, 20] = nodata
    raster = read(write(tmp_path / "a.tif", pixels, nodata=nodata))
    expected = np.ones((80, 80), np.bool_)
    expected[20, 20] = False
    expected[10, 10] = not one_band_spoils
    np.testing.assert_array_equal(raster.valid, expected)
    assert (raster.pixels[:, ~expected] == 0).all()
    np.testing.assert_array_equal(raster.pixels[:, expected], pixels[:, expected])


def test_mask_and_alpha(tmp_path):
    pixels = RNG.integers(1, 200, (3, 80, 80), dtype=np.uint8)
    keep = RNG.random((80, 80)) > 0.3
    path = write(tmp_path / "mask.tif", pixels)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(keep)
    np.testing.assert_array_equal(read(path).valid, keep)
    path = write(tmp_path / "alpha.tif", np.concatenate([pixels, keep[None].astype(np.uint8) * 255]))
    info = describe(path)
    assert (info.num_bands, info.alpha_index) == (3, 4)
    np.testing.assert_array_equal(read(path).valid, keep)


def test_a_measurement_marked_as_alpha_is_not_swallowed(tmp_path):
    pixels = RNG.integers(0, 255, (4, 80, 80), dtype=np.uint8)
    path = write(tmp_path / "a.tif", pixels)
    with rasterio.open(path) as file:
        assert file.colorinterp[3] == ColorInterp.alpha  # what GDAL makes of any four 8-bit bands
    with pytest.raises(DataError, match="marked as alpha"):
        describe(path)
    assert describe(path, alpha_is_data=True).num_bands == 4
    with rasterio.open(path, "r+") as file:
        file.descriptions = ("red", "green", "blue", "nir")
    assert describe(path).num_bands == 4
    np.testing.assert_array_equal(read(path).pixels, pixels)


@pytest.mark.parametrize(
    ("bad", "found"), [(np.nan, "1 NaN and 0 infinite"), (np.inf, "0 NaN and 1 infinite")]
)
def test_no_numbers_are_an_error(tmp_path, bad, found):
    pixels = np.ones((2, 80, 80), np.float32)
    pixels[1, 70, 3] = bad
    path = write(tmp_path / "a.tif", pixels)
    assert read(path, Window(0, 0, 60, 60)).valid.all()
    with pytest.raises(DataError, match=found) as caught:
        read(path, Window(40, 0, 40, 40))
    assert "rows 40-80, columns 0-40" in str(caught.value)
    assert "nodata" in str(caught.value)


def test_infinity_beside_declared_nan_is_still_an_error(tmp_path):
    pixels = np.ones((1, 80, 80), np.float32)
    pixels[0, 0, :2] = np.nan, np.inf
    with pytest.raises(DataError, match="1 infinite"):
        read(write(tmp_path / "a.tif", pixels, nodata=float("nan")))


def test_files_that_are_no_images(tmp_path):
    (tmp_path / "empty.tif").touch()
    (tmp_path / "text.tif").write_text("not an image")
    for name, part in [
        ("gone.tif", "no such file"),
        (".", "a folder"),
        ("empty.tif", "0 bytes"),
        ("text.tif", "text.tif"),
    ]:
        with pytest.raises(DataError, match=part):
            describe(tmp_path / name)


def test_types_that_are_not_read(tmp_path):
    path = write(tmp_path / "a.tif", np.zeros((1, 80, 80), np.float64))
    with pytest.raises(DataError, match=r"float64.*Float32"):
        describe(path)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("driver", ["GTiff", "COG"])
def test_truncated_tiff(tmp_path, driver, share):
    pixels = RNG.integers(0, 255, (3, 1100, 1100), dtype=np.uint8)
    path = tmp_path / "a.tif"
    write(tmp_path / "whole.tif", pixels)
    with rasterio.open(tmp_path / "whole.tif") as whole:
        raster_shutil.copy(whole, path, driver=driver)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(DataError, match=r"a\.tif"):
        read(path)


def test_damage_found_while_reading_names_the_window(tmp_path):
    pixels = RNG.integers(0, 255, (1, 256, 256), dtype=np.uint8)
    path = write(tmp_path / "a.tif", pixels, compress="deflate")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle - 3000 : middle + 3000] = bytes(6000)
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"a\.tif cannot be read at rows 0-256, columns 0-256"):
        read(path)
