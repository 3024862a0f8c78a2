"""What a folder seems to hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import shapely
from PIL import Image

from outsize.data.guess import guess
from outsize.errors import DataError

WriteRaster = Callable[..., Path]


def picture(path: Path, values: list[int] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if values is None:
        Image.fromarray(np.full((20, 30, 3), 7, np.uint8)).save(path)
    else:
        Image.fromarray(np.resize(np.uint8(values), (20, 30))).save(path)


def test_twin_folders_in_tiles(tmp_path: Path) -> None:
    for tile in ("t1", "t2", "t3"):
        for number in range(3):
            picture(tmp_path / tile / "images" / f"{number}.jpg")
            picture(tmp_path / tile / "labels" / f"{number}.png", [0, 2, 255])
    found = guess(tmp_path)
    assert (found.format, found.images, found.labels) == (
        "folders",
        ("*/images/*.jpg",),
        "../labels/{stem}.png",
    )
    assert found.classes == (("class_0", 0, None), ("class_2", 2, None))
    assert (found.bands, found.split_by, found.num_images) == (("red", "green", "blue"), "folder", 9)


def test_suffixes_side_by_side(tmp_path: Path) -> None:
    for number in range(7):
        picture(tmp_path / f"p{number}.png")
        picture(tmp_path / f"p{number}_mask.png", [0, 1])
    found = guess(tmp_path)
    assert (found.images, found.labels, found.split_by) == (("*.png",), "{stem}_mask.png", "scene")


def test_suffixes_in_a_twin_folder(tmp_path: Path) -> None:
    for number in range(7):
        picture(tmp_path / "images" / f"p{number}.png")
        picture(tmp_path / "masks" / f"p{number}_seg.png", [0, 1])
    found = guess(tmp_path)
    assert (found.images, found.labels) == (("images/*.png",), "../masks/{stem}_seg.png")


def test_a_scene_with_its_mask_and_named_bands(write_raster: WriteRaster, tmp_path: Path) -> None:
    write_raster("scene.tif", np.ones((4, 64, 64), np.uint16))
    write_raster("mask.tif", np.ones((64, 64), np.uint8))
    found = guess(tmp_path)
    assert (found.format, found.images, found.labels, found.split_by) == (
        "scenes",
        ("scene.tif",),
        "mask.tif",
        "blocks",
    )
    assert found.bands == ("band_1", "band_2", "band_3", "band_4")
    assert [value for _, value, _ in found.classes] == [1, 0]  # a map has two classes at least


@pytest.mark.parametrize(("kinds", "attribute"), [(["oak", "elm"] * 4, "kind"), (["x"] * 8, None)])
def test_polygons_beside_a_scene(
    write_raster: WriteRaster, tmp_path: Path, kinds: list[str], attribute: str | None
) -> None:
    write_raster("scene.tif", np.ones((3, 64, 64), np.uint8))
    wkb = shapely.to_wkb(np.array([shapely.box(5e5, 5e6 - 9, 5e5 + 9, 5e6)] * 8))
    columns = [np.arange(8), np.array(kinds, object)]
    pyogrio.raw.write(
        tmp_path / "trees.gpkg", wkb, columns, ["id", "kind"], geometry_type="Polygon", crs="EPSG:32632"
    )
    found = guess(tmp_path)
    assert (found.labels, found.attribute, found.outside) == ("trees.gpkg", attribute, "background")
    names = [name for name, _, _ in found.classes]
    assert names == (["background", "elm", "oak"] if attribute else ["background", "trees"])
    assert found.all_polygons == (None if attribute else "trees")


def test_labels_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "a_mask.png", list(range(200)))
    with pytest.raises(DataError, match="seem to be no classes: found 200 values"):
        guess(tmp_path)


def test_a_folder_without_labels_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(
        DataError, match=r"no image with labels in .*: found 1 images and 0 files of polygons"
    ):
        guess(tmp_path)


def test_a_picture_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    for number in range(7):
        picture(tmp_path / "images" / f"p{number}.jpg")
        picture(tmp_path / "masks" / f"p{number}.png", [0, 1])
    for name in ("images/p0.jpg", "masks/p3.png"):  # the first, after which all others were judged
        (tmp_path / name).write_bytes(b"words" * 100)
    found = guess(tmp_path)
    assert (found.num_images, found.bands, len(found.classes)) == (7, ("red", "green", "blue"), 2)
    assert [each.path.name for each in found.unreadable] == ["p0.jpg", "p3.png"]
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(b"words" * 100)
    with pytest.raises(DataError, match=r"images can be read: found none of 7.* p0\.jpg") as caught:
        guess(tmp_path)
    assert "gdal" not in str(caught.value)
