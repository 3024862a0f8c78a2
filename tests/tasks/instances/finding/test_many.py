"""Many scenes at once have the objects that each has alone, and true objects count where their split is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage
from tests.tasks.instances.discs import draw_discs, write_scene
from tests.tasks.instances.finding.test_objects import SAME_SCALE, finder

from outsize.data.object import Object, make_object
from outsize.data.object_files import ObjectFiles, save_objects
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError
from outsize.raster.reading import SceneReader
from outsize.tasks.instances.finding.many import find_in_many
from outsize.tasks.instances.finding.objects import find_objects
from outsize.tasks.instances.picture import draw_objects, outlined
from outsize.tasks.instances.truth import beside, score_scenes, true_objects
from outsize.tiles.window import Window


def labelled(path: Path, height: int, width: int, seed: int) -> LabelledScene:
    picture, _ = draw_discs(height, width, 9, seed=seed)
    info = write_scene(path, picture)
    ids, num = ndimage.label(picture > 0)
    objects = [make_object(0, info.window, ids == number) for number in range(1, num + 1)]
    save_objects(path.with_suffix(".npz"), [each for each in objects if each is not None], "key")
    return LabelledScene(info, info, objects=path.with_suffix(".npz"))


def test_pictures_of_one_size_share_batches_and_nothing_else(tmp_path: Path) -> None:
    sizes = [(100, 120), (300, 260), (100, 120), (90, 70), (100, 120)]
    scenes = [labelled(tmp_path / f"{number}.tif", *size, number) for number, size in enumerate(sizes)]
    disc_finder = finder(128, 32)
    found = dict(find_in_many(disc_finder, [(each.image, ()) for each in scenes]))
    assert sorted(found) == list(range(5))
    for index, scene in enumerate(scenes):
        with SceneReader(scene.image) as reader:
            alone = find_objects(disc_finder, reader, disc_finder.tiles(scene.image))
        assert sorted(map(_place, found[index])) == sorted(map(_place, alone))
        assert len(alone) == 9


def test_validation_of_a_perfect_detector_is_one(tmp_path: Path) -> None:
    scenes = [labelled(tmp_path / f"{number}.tif", 100 + 150 * number, 120, number) for number in range(2)]
    disc_finder = finder(128, 32)
    scores = score_scenes(
        disc_finder.model,
        scenes,
        bands=("",),
        statistics=SAME_SCALE,
        num_classes=1,
        tiling=disc_finder.tiling,
        settings=disc_finder.settings,
    )
    assert scores["mask_ap50"] == pytest.approx(1.0)
    assert scores["box_ap50"] == pytest.approx(1.0)


def test_what_lies_outside_of_the_split_does_not_count() -> None:
    one, two, across = (_block(row) for row in (0, 60, 36))
    picture = beside([one, two, across], [one, two, across], [Window(0, 0, 40, 100)])
    assert [each.class_id for each in picture.truth] == [0, -1, -1]
    assert [each.window for each in picture.found] == [one.window]


def test_labels_of_pixels_have_no_objects(tmp_path: Path) -> None:
    info = write_scene(tmp_path / "a.tif", np.zeros((64, 64), np.uint8))
    with pytest.raises(DataError, match="labelled by pixels"):
        true_objects(LabelledScene(info, info), ObjectFiles())


def test_outlines_are_drawn_and_what_is_inside_stays(tmp_path: Path) -> None:
    plain = np.zeros((100, 100, 3), np.uint8)
    painted = outlined(plain, [_block(10)], [(255, 0, 0)])
    assert painted[10, 5].tolist() == [255, 0, 0]
    assert painted[15, 10].tolist() == [0, 0, 0]
    info = write_scene(tmp_path / "a.tif", plain[..., 0])
    draw_objects(tmp_path / "a.png", info, {"1 labelled": [_block(10)], "0 found": []}, [(255, 0, 0)])
    from PIL import Image

    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (208, 140)
        assert np.asarray(image)[:40, :100].min() < 128  # the title


def test_a_large_scene_is_drawn_where_its_objects_are_and_lines_are_wide_enough(tmp_path: Path) -> None:
    info = write_scene(tmp_path / "a.tif", np.zeros((2000, 2400), np.uint8))
    inside = Object(0, Window(1900, 2200, 60, 80), np.ones((60, 80), np.bool_))
    draw_objects(tmp_path / "a.png", info, {"1 found": [inside]}, [(255, 0, 0)])
    from PIL import Image

    with Image.open(tmp_path / "a.png") as image:
        seen = np.asarray(image)[40:]
    assert seen.shape == (1536, 1536, 3)
    red = (seen == [255, 0, 0]).all(axis=2)
    row, col = 1900 - (2000 - 1536), 2200 - (2400 - 1536)  # as far as the scene goes
    assert red[row : row + 3, col : col + 80].all()
    assert not red[row + 30, col + 40]


@pytest.mark.parametrize(
    ("places", "num_seen"),
    [
        ([(100, 150), (3900, 4900)], 1),  # in between there is nothing
        ([(100, 150), (3500, 400), (3600, 500), (3700, 300), (3900, 4900)], 3),  # where most are
        ([(2000, 1000), (2000, 2300)], 2),  # all, if they go on one picture
    ],
)
def test_of_objects_far_apart_some_are_shown(
    tmp_path: Path, places: list[tuple[int, int]], num_seen: int
) -> None:
    from PIL import Image

    info = write_scene(tmp_path / "a.tif", np.zeros((4000, 5000), np.uint8))
    objects = [Object(0, Window(*place, 30, 40), np.ones((30, 40), np.bool_)) for place in places]
    draw_objects(tmp_path / "a.png", info, {"found": objects}, [(255, 0, 0)])
    with Image.open(tmp_path / "a.png") as image:
        red = (np.asarray(image)[40:] == [255, 0, 0]).all(axis=2)
    assert ndimage.label(red, np.ones((3, 3)))[1] == num_seen


def _block(row: int) -> Object:
    return Object(0, Window(row, 0, 12, 20), np.ones((12, 20), np.bool_))


def _place(each: Object) -> tuple[int, int, int]:
    return each.window.row, each.window.col, each.num_px
