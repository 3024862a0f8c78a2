import numpy as np
import pytest
from PIL import Image, ImageOps

from outsize.errors import DataError
from outsize.raster.reading import SceneReader, describe
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


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_picture_is_read_upright(tmp_path, orientation, suffix):
    pixels = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}", exif=exif)
    info, raster = read_all(tmp_path / f"a.{suffix}")
    with Image.open(tmp_path / f"a.{suffix}") as stored:
        wanted = np.asarray(ImageOps.exif_transpose(stored))
    assert (info.height, info.width) == wanted.shape[:2]
    np.testing.assert_array_equal(raster.pixels, np.moveaxis(wanted, 2, 0))


@pytest.mark.parametrize("broken", [b"Exif\x00\x00nonsense", b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x05\x00"])
def test_broken_exif_says_nothing(tmp_path, broken):
    pixels = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=broken)
    info, raster = read_all(tmp_path / "a.png")
    assert (info.height, info.width) == (20, 30)
    np.testing.assert_array_equal(raster.pixels, np.moveaxis(pixels, 2, 0))


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_picture_is_read_smaller(tmp_path, orientation):
    pixels = RNG.integers(0, 256, (21, 32, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    whole, raster = read_all(tmp_path / "a.png")
    info = whole.shrunk(3)
    assert (info.height, info.width) == (whole.height // 3, whole.width // 3)
    squares = raster.pixels[:, : 3 * info.height, : 3 * info.width].reshape(3, info.height, 3, info.width, 3)
    with SceneReader(info) as reader:
        mean = reader.read(info.window).pixels
    np.testing.assert_allclose(mean, squares.mean((2, 4)), atol=0.6)  # as Pillow rounds
    with SceneReader(whole.shrunk(3, nearest=True)) as reader:
        np.testing.assert_array_equal(reader.read(info.window).pixels, squares[:, :, 1, :, 1])
    assert info.shrunk(3) is info


@pytest.mark.parametrize("mode", ["P", "I;16", "1"])
def test_indexes_and_deep_greys_take_the_pixel_in_the_middle(tmp_path, mode):
    Image.fromarray(RNG.integers(0, 200, (9, 12), dtype=np.uint8)).convert(mode).save(tmp_path / "a.png")
    whole, raster = read_all(tmp_path / "a.png")
    with SceneReader(whole.shrunk(2)) as reader:
        np.testing.assert_array_equal(reader.read(Window(0, 0, 4, 6)).pixels, raster.pixels[:, 1:9:2, 1::2])


def test_only_pictures_are_read_smaller(tmp_path, write_raster):
    path = write_raster("a.tif", np.zeros((1, 20, 20), np.uint8))
    with pytest.raises(DataError, match=r"a.tif cannot be read smaller: found a GTiff file"):
        describe(path).shrunk(2)
    Image.fromarray(np.zeros((2, 30), np.uint8)).save(tmp_path / "b.png")
    with pytest.raises(
        DataError, match=r"b.png cannot be read smaller: found 2 x 30 px.*leave data.shrink out"
    ):
        describe(tmp_path / "b.png").shrunk(4)
