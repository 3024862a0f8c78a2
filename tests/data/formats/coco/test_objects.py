"""Objects of a COCO file on photos that a camera stored sideways, and runs instead of polygons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.instances_pictures import photo, section

from outsize.data.formats.coco.file import Annotation, CocoPicture, Rle
from outsize.data.formats.coco.objects import CocoEntry, fitting, open_outlined
from outsize.data.formats.coco.runs import runs
from outsize.data.object_files import UNKNOWN, load_objects
from outsize.errors import DataError
from outsize.tiles.window import Window

DATA = section("nut")
SQUARE = (2.0, 3.0, 8.0, 3.0, 8.0, 7.0, 2.0, 7.0)  # columns 2 to 8, rows 3 to 7


def entry(height: int, width: int, *annotations: Annotation) -> CocoEntry:
    return CocoEntry(CocoPicture("a.jpg", height, width, annotations), Path("file.json"))


def sideways(path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6  # stored 20 x 30, upright 30 x 20
    Image.fromarray(photo(0, (20, 30))).save(path, exif=exif)


@pytest.mark.parametrize(
    ("size", "window"),
    [((30, 20), Window(3, 2, 4, 6)), ((20, 30), Window(2, 13, 6, 4))],
    ids=["upright", "stored"],
)
def test_outlines_are_turned_with_a_photo_only_where_its_size_says_so(
    tmp_path: Path, size: tuple[int, int], window: Window
) -> None:
    sideways(tmp_path / "a.jpg")
    each = entry(*size, Annotation("nut", rings=(SQUARE,)))
    assert fitting(tmp_path / "a.jpg", each)[1:] == (6, size == (20, 30))
    scene = open_outlined(tmp_path / "a.jpg", each, DATA, tmp_path / "cache", {"nut": 1})
    assert scene.objects is not None
    assert [found.window for found in load_objects(scene.objects).all()] == [window]


def test_runs_boxes_and_categories_left_out(tmp_path: Path) -> None:
    sideways(tmp_path / "a.jpg")
    mask = np.zeros((30, 20), np.bool_)
    mask[5:9, 4:6] = mask[7, 4:12] = True
    from outsize.data.object import make_object

    made = make_object(0, Window(0, 0, 30, 20), mask)
    assert made is not None
    annotations = (
        Annotation("nut", rle=Rle((30, 20), runs(made, 30, 20))),
        Annotation("nut", box=(1.0, 1.0, 3.0, 4.0)),
        Annotation("shell", rings=(SQUARE,)),
    )
    scene = open_outlined(
        tmp_path / "a.jpg", entry(30, 20, *annotations), DATA, tmp_path / "cache", {"nut": 1}
    )
    assert scene.objects is not None
    first, second = load_objects(scene.objects).all()
    assert (first.class_id, first.window) == (0, made.window)
    assert np.array_equal(first.mask, made.mask)
    assert (second.class_id, second.window) == (UNKNOWN, Window(1, 1, 4, 3))


def test_a_picture_of_another_size_is_refused(tmp_path: Path) -> None:
    sideways(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"found 30 x 20 px, needed 30 x 21 px"):
        fitting(tmp_path / "a.jpg", entry(30, 21))


def test_runs_of_another_size_are_refused(tmp_path: Path) -> None:
    sideways(tmp_path / "a.jpg")
    wrong = entry(30, 20, Annotation("nut", rle=Rle((30, 21), (630,))))
    with pytest.raises(
        DataError, match=r"a mask of .*a\.jpg in file\.json cannot be read: found runs of 30 x 21"
    ):
        open_outlined(tmp_path / "a.jpg", wrong, DATA, tmp_path / "cache", {"nut": 1})
