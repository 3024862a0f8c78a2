"""Bands go by name where both sides name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from outsize.data.bands import band_order, in_order, misnamed, own_bands
from outsize.data.catalogue import open_data
from outsize.data.checking.check import check_data
from outsize.errors import DataError
from outsize.job import DataSection
from outsize.raster.reading import SceneReader, describe

WriteRaster = Callable[..., Path]
OURS = ("blue", "green", "red", "nir")
BLANK = np.ones((4, 8, 8), np.uint16)


@pytest.mark.parametrize(
    ("theirs", "order"),
    [
        (OURS, None),
        ((), None),
        (("red", "green", "blue", "nir"), (2, 1, 0, 3)),
        (("nir", "blue", "green", "red"), (1, 2, 3, 0)),
    ],
)
def test_order(write_raster: WriteRaster, theirs: tuple[str, ...], order: tuple[int, ...] | None) -> None:
    assert band_order(OURS, describe(write_raster("a.tif", BLANK, names=theirs))) == order


def test_names_that_do_not_match_are_refused(write_raster: WriteRaster) -> None:
    info = describe(write_raster("a.tif", BLANK, names=("blue", "green", "red", "swir")))
    with pytest.raises(
        DataError, match=r"a\.tif.*found blue, green, red, swir, needed blue, green, red, nir"
    ):
        band_order(OURS, info)


def test_another_number_of_bands_is_refused(write_raster: WriteRaster) -> None:
    with pytest.raises(DataError, match=r"a\.tif.*found 3 .*needed 4 \(blue, green, red, nir\)"):
        band_order(OURS, describe(write_raster("a.tif", BLANK[:3])))


def test_a_name_that_is_there_twice_says_nothing(write_raster: WriteRaster) -> None:
    info = describe(write_raster("a.tif", BLANK, names=("blue", "red", "red", "nir")))
    asked = ("red", "blue", "red", "nir")
    with pytest.raises(DataError, match=r"a\.tif.*found blue, red, red, nir, needed red, blue, red, nir"):
        band_order(asked, info)
    assert in_order(asked, info) is info
    assert band_order(info.band_names, info) is None


def test_a_scene_is_read_in_the_order_asked_for(write_raster: WriteRaster) -> None:
    pixels = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    info = describe(write_raster("a.tif", pixels, names=("nir", "blue", "green", "red")))
    for asked, order in ((OURS, [1, 2, 3, 0]), (OURS[::-1], [0, 3, 2, 1])):
        ordered = in_order(asked, info)
        assert ordered.band_names == asked
        with SceneReader(ordered) as reader:
            np.testing.assert_array_equal(reader.read(info.window).pixels, pixels[order])


def test_other_names_and_none_leave_a_scene_as_it_is(write_raster: WriteRaster) -> None:
    for names, asked in (((), OURS), (OURS, ()), (("blue", "green", "red", "swir"), OURS), (OURS, OURS[:3])):
        info = describe(write_raster("a.tif", BLANK, names=names))
        assert in_order(asked, info) is info


@pytest.mark.parametrize("bands", [(), OURS[::-1]], ids=["first file", "job"])
def test_scenes_of_several_orders_are_counted_as_one(
    write_raster: WriteRaster, tmp_path: Path, bands: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(1, 100, (4, 32, 40)).astype(np.uint16) * np.uint16(
        [[[1]], [[10]], [[100]], [[400]]]
    )
    for name, order in (("a", [0, 1, 2, 3]), ("b", [2, 3, 1, 0]), ("c", [3, 0, 2, 1])):
        write_raster(f"{name}.tif", pixels[order], names=tuple(OURS[band] for band in order))
        write_raster(f"{name}_labels.tif", rng.integers(0, 2, (32, 40)).astype(np.uint8))
    keys = {"train": [f"{tmp_path}/[ab].tif"], "val": [f"{tmp_path}/c.tif"], "bands": bands}
    classes = [{"name": "ground", "value": 0}, {"name": "house", "value": 1}]
    data = DataSection.model_validate({"classes": classes, **keys})
    splits = open_data(data, seed=0, halo_px=0, cache=tmp_path / "labels")
    scenes = [scene.image for scene in (*splits.train, *splits.val)]
    assert {scene.band_names for scene in scenes} == {bands or OURS}
    checked = check_data(data, splits, num_threads=1)
    assert checked.problems == ()
    assert checked.statistics is not None
    means = pixels.mean(axis=(1, 2))
    np.testing.assert_allclose(checked.statistics.mean, means[::-1] if bands else means)


@pytest.mark.parametrize(("kind", "shape"), [("png", (8, 8, 3)), ("jpg", (8, 8, 3)), ("png", (8, 8, 4))])
def test_a_colour_picture_names_its_bands(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    Image.fromarray(np.zeros(shape, np.uint8)).save(tmp_path / f"a.{kind}")
    assert own_bands(describe(tmp_path / f"a.{kind}")) == ("red", "green", "blue")


def test_other_images_have_the_names_in_the_file(tmp_path: Path, write_raster: WriteRaster) -> None:
    assert own_bands(describe(write_raster("a.tif", BLANK, names=OURS))) == OURS
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "grey.png")
    assert own_bands(describe(tmp_path / "grey.png")) == ("",)


def test_bands_of_no_image_are_the_jobs_mistake(write_raster: WriteRaster) -> None:
    images = [describe(write_raster(name, BLANK, names=OURS)) for name in ("a.tif", "b.tif")]
    for bands in (OURS[:3], ("blue", "green", "red", "swir")):
        (fault,) = misnamed(bands, images)
        assert "data.bands" in str(fault)
        assert "needed the 4 of a.tif: blue, green, red, nir" in str(fault)
    odd = describe(write_raster("odd.tif", BLANK[:3]))
    assert misnamed(OURS, [odd, *images]) == []  # it is the image that differs
    assert "needed the 3 of odd.tif;" in str(misnamed(OURS, [odd])[0])
    assert misnamed((), images) == misnamed(OURS, []) == []
