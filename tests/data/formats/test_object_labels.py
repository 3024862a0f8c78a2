"""The raster of classes that goes with a file of objects: small ones on top, nothing around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from tests.data.instances_pictures import SIZE, draw_scene, photo, section

from outsize.data.formats.object_labels import in_full, with_objects
from outsize.data.object import Object
from outsize.data.object_files import UNKNOWN, load_objects
from outsize.raster.reading import SceneReader, describe
from outsize.tiles.window import Window


def block(class_id: int, *place: int) -> Object:
    window = Window(*place)
    return Object(class_id, window, np.ones((window.height, window.width), np.bool_))


OBJECTS = (block(0, 2, 2, 5, 5), block(1, 0, 0, 20, 20), block(UNKNOWN, 30, 30, 4, 4), None)


def test_the_smaller_of_two_is_on_top(tmp_path: Path) -> None:
    Image.fromarray(photo(0)).save(tmp_path / "a.png")
    data = section("cap", "bottle")
    image = describe(tmp_path / "a.png")
    scene = with_objects(image, data, tmp_path / "cache", "key", lambda: OBJECTS)
    with SceneReader(scene.labels) as reader:
        labels = reader.read(image.window).pixels[0]
    assert labels.shape == SIZE
    assert [int((labels == value).sum()) for value in (1, 2)] == [25, 375]
    assert labels[31, 31] == 255
    assert scene.objects is not None
    held = load_objects(scene.objects)
    assert (held.num_objects, int(held.num_lost)) == (2, 1)
    assert [each.window for each in held.all()] == [each.window for each in OBJECTS if each is not None]


def test_labels_of_a_raster_lie_on_its_grid(tmp_path: Path) -> None:
    draw_scene(tmp_path)
    image = describe(tmp_path / "scene.tif")
    scene = with_objects(image, section("cap", "bottle"), tmp_path / "cache", "key", lambda: OBJECTS)
    assert scene.labels.georef == image.georef
    with SceneReader(scene.labels) as reader:
        raster = reader.read(image.window)
    assert int(raster.valid.sum()) == 400


def test_objects_are_made_in_full_size(tmp_path: Path) -> None:
    Image.fromarray(photo(0)).save(tmp_path / "a.png")
    assert in_full(tmp_path / "a.png", section("cap", shrink=2)).shrink == 1
