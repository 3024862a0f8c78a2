import numpy as np
import pytest
from PIL import Image

from outsize.errors import DataError
from outsize.raster.read import SceneReader, describe
from outsize.tiles.window import Window

RNG = np.random.default_rng(0)


def read_all(path):
    info = describe(path)
    with SceneReader(info) as reader:
        return info, reader.read(info.window)


@pytest.mark.parametrize(("mode", "bands"), [("L", 1), ("RGB", 3)])
def test_png_comes_back(tmp_path, mode, bands):
    pixels = RNG.integers(0, 256, (20, 30, bands), dtype=np.uint8)
    Image.fromarray(pixels.squeeze()).save(tmp_path / "a.png")
    info, raster = read_all(tmp_path / "a.png")
    assert (info.height, info.width, info.num_bands, info.dtype) == (20, 30, bands, "uint8")
    assert info.georef.crs_wkt is None
    np.testing.assert_array_equal(raster.pixels, np.moveaxis(pixels, 2, 0))
    assert raster.valid.all()


def test_16_bit_grey_comes_back(tmp_path):
    pixels = RNG.integers(0, 65536, (20, 30), dtype=np.uint16)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    info, raster = read_all(tmp_path / "a.png")
    assert info.dtype == "uint16"
    np.testing.assert_array_equal(raster.pixels[0], pixels)


def test_alpha_makes_pixels_invalid_and_zero(tmp_path):
    pixels = RNG.integers(1, 256, (20, 30, 4), dtype=np.uint8)
    pixels[:5, :, 3] = 0
    Image.fromarray(pixels).save(tmp_path / "a.png")
    info, raster = read_all(tmp_path / "a.png")
    assert info.num_bands == 3
    np.testing.assert_array_equal(raster.valid, pixels[..., 3] > 0)
    assert (raster.pixels[:, :5] == 0).all()
    assert (raster.pixels[:, 5:] > 0).all()


def test_indexed_picture_gives_indexes(tmp_path):
    ids = RNG.integers(0, 4, (20, 30), dtype=np.uint8)
    image = Image.fromarray(ids).convert("P")
    image.putpalette([200, 100, 50] * 256)
    image.putdata(ids.ravel().tolist())
    image.save(tmp_path / "a.png")
    _, raster = read_all(tmp_path / "a.png")
    np.testing.assert_array_equal(raster.pixels[0], ids)


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_truncated_picture_is_an_error(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    Image.fromarray(RNG.integers(0, 256, (200, 200, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=path.name), SceneReader(describe(path)) as reader:
        reader.read(Window(0, 0, 8, 8))


def test_name_does_not_decide_the_format(tmp_path):
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.tif")
    assert read_all(tmp_path / "a.tif")[1].pixels[0, 0, 0] == 7
