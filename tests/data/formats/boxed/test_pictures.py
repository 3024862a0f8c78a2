"""Datasets of boxes as they are distributed: where things lie, and what is wrong is said in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.formats.boxed.box_pictures import SIZE, boxed, file, opened, picture

from outsize.data.boxes import NEUTRAL
from outsize.data.catalogue import find_data
from outsize.data.formats.boxed import find_boxed, find_idl
from outsize.errors import DataError, JobError, UnsafeFileError

_ROW = "{} 0.00 0 -1.5 {} 1.5 1.6 4 1 1 20 -1.6\n"


def kitti(root: Path, num: int = 10) -> Path:
    for number in range(num):
        picture(root / f"image_2/{number:06d}.png")
        rows = [
            _ROW.format("Car", "5 6 25 20"),
            _ROW.format("Van", "1 1 4 4"),
            _ROW.format("Truck", "0 0 60 9"),
        ]
        file(root / f"label_2/{number:06d}.txt", "".join(rows) + _ROW.format("DontCare", "30 1 50 9"))
    return root


def test_kitti_neighbours_are_neutral_and_other_types_left_out(tmp_path: Path) -> None:
    layout = find_boxed(boxed("kitti", kitti(tmp_path)), seed=0)
    held = opened(layout, layout.shared["train"][0], tmp_path / "cache")
    assert held.boxes.labels.tolist() == ["Car", "Van", "DontCare"]
    assert held.class_ids.tolist() == [0, NEUTRAL, NEUTRAL]
    joined = boxed("kitti", tmp_path, joined={"Van": "Car"})
    held = opened(find_boxed(joined, 0), layout.shared["train"][0], tmp_path / "cache")
    assert held.class_ids.tolist() == [0, 0, NEUTRAL]


def test_the_raster_of_classes_has_the_smaller_box_on_top(tmp_path: Path) -> None:
    rows = [_ROW.format("Pedestrian", "10.5 8 14 12"), _ROW.format("Car", "5 6 25 20")]
    picture(tmp_path / "image_2/a.png")
    file(tmp_path / "label_2/a.txt", "".join(rows))
    data = boxed("kitti", tmp_path, split={"val": 0, "test": 0})
    survey = find_data(data, seed=0, cache=tmp_path / "cache")
    (scene,) = survey.scenes.values()
    labels = np.asarray(Image.open(scene.labels.path))
    assert labels.shape == SIZE
    assert (labels[9, 6], labels[9, 10], labels[9, 14], labels[0, 0]) == (1, 2, 1, 255)


def test_splits_by_name_by_chance_and_from_lists(tmp_path: Path) -> None:
    kitti(tmp_path)
    named = find_boxed(boxed("kitti", tmp_path, split={"order": "named", "val": 0.2, "test": 0.1}), 0).shared
    assert [path.stem[-1] for path in (*named["val"], *named["test"])] == ["7", "8", "9"]
    drawn = [find_boxed(boxed("kitti", tmp_path), seed).shared["val"] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    file(tmp_path / "train.txt", "000003\ntraining/image_2/000001.png training/label_2/000001.txt\n")
    file(tmp_path / "val.txt", "000002.png\n")
    lists = {split: str(tmp_path / f"{split}.txt") for split in ("train", "val")}
    shared = find_boxed(boxed("kitti", tmp_path, **lists), 0).shared
    assert {split: [path.stem for path in held] for split, held in shared.items()} == {
        "train": ["000003", "000001"],
        "val": ["000002"],
        "test": [],
    }
    file(tmp_path / "val.txt", "000042\n")
    (fault,) = find_boxed(boxed("kitti", tmp_path, **lists), 0).faults
    assert "val.txt, line 1: no such picture: found '000042'" in str(fault)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("Car 0 0 -1 1 2 3\n", "000000.txt, line 1: it is no box: found 7 columns"),
        (_ROW.format("Car", "25 6 5 20"), "box 1: it has no area: found 25, 6, 5, 20"),
        (_ROW.format("Car", "1 1 9 nan"), "line 1: a column is no number: found 'nan'"),
        (_ROW.format("Car", "500 160 650 220"), "labels of a picture of another size"),
        (_ROW.format("Bus", "1 1 9 9"), "that the job does not list: found 'Bus'"),
    ],
)
def test_a_bad_label_is_told_in_one_line_with_its_file(tmp_path: Path, row: str, text: str) -> None:
    kitti(tmp_path, 3)
    bad = file(tmp_path / "label_2/000000.txt", row)
    with pytest.raises((DataError, JobError)) as error:
        find_data(boxed("kitti", tmp_path), seed=0, cache=tmp_path / "cache")
    assert text in str(error.value)
    assert str(bad) in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("000000*"))


def test_a_picture_without_labels_is_told(tmp_path: Path) -> None:
    kitti(tmp_path, 3)
    (tmp_path / "label_2/000001.txt").unlink()
    (fault,) = find_boxed(boxed("kitti", tmp_path), 0).faults
    assert "of 1 of 3 pictures" in str(fault)
    (fault,) = find_boxed(boxed("kitti", tmp_path / "image_2"), 0).faults
    assert "no pictures in" in str(fault)


def test_voc_counts_from_one_and_leaves_difficult_ones_neutral(tmp_path: Path) -> None:
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>60</xmax><ymax>40</ymax></bndbox>"
    one = f"<object><name>{{}}</name>{{}}{box}</object>"
    text = f"<annotation>{one.format('car', '')}{one.format('car', '<difficult>1</difficult>')}</annotation>"
    picture(tmp_path / "JPEGImages/a.jpg")
    labels = file(tmp_path / "Annotations/a.xml", text)
    data = boxed("voc", tmp_path, "car", split={"val": 0, "test": 0})
    layout = find_boxed(data, 0)
    held = opened(layout, layout.shared["train"][0], tmp_path / "cache")
    assert held.boxes.sides.tolist() == [[0, 0, 60, 40]] * 2
    assert held.class_ids.tolist() == [0, NEUTRAL]
    sized = text.replace("<annotation>", "<annotation><size><width>61</width><height>40</height></size>")
    for wrong, kind, told in (
        (sized, DataError, "found 40 x 60 px, needed 40 x 61 px"),
        (text.replace("</annotation>", ""), DataError, "are no XML"),
        (text.replace("<name>car</name>", "", 1), DataError, "object 1: it is no box: found no name"),
        (f"<!DOCTYPE a [<!ENTITY b 'c'>]>{text}", UnsafeFileError, "definitions of entities"),
    ):
        labels.write_text(wrong)
        with pytest.raises(kind, match=told):
            opened(layout, layout.shared["train"][0], tmp_path / "cache")


def test_yolo_is_in_shares_and_a_picture_without_file_is_empty(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("a", "b"):
            picture(tmp_path / f"images/{split}/{split}{name}.jpg")
        file(tmp_path / f"labels/{split}/{split}a.txt", "2 0.5 0.5 0.5 0.25\n")
    lists = {split: str(tmp_path / f"images/{split}") for split in ("train", "val")}
    data = boxed("yolo", tmp_path, "person", "car", **lists)
    layout = find_boxed(data, 0)
    assert [len(layout.shared[split]) for split in ("train", "val", "test")] == [2, 2, 0]
    assert "2 pictures have no label file" in layout.notes[0]
    first, second = (opened(layout, path, tmp_path / "cache") for path in layout.shared["train"])
    assert first.boxes.sides.tolist() == [[15, 15, 45, 25]]
    assert (first.class_ids.tolist(), len(second.boxes)) == ([1], 0)
    label = tmp_path / "labels/train/traina.txt"
    for wrong, told in (
        ("2 0.5 0.5 0.5\n", "4 columns"),
        ("2 20 15 10 9\n", "not in shares"),
        ("x 0 0 1 1", "'x'"),
    ):
        label.write_text(wrong)
        with pytest.raises(DataError, match=told):
            opened(layout, layout.shared["train"][0], tmp_path / "cache")


def test_lists_of_idl(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"images/{name}.png")
    text = '"images/a.png": (5, 6, 25, 20), (1, 1, 4, 4):0.5;\n"images/b.png";\n'
    train = file(tmp_path / "train.idl", text)
    data = boxed("idl", tmp_path, "Car", train=str(train))
    layout = find_idl(data, 0)
    first, second = (opened(layout, path, tmp_path / "cache") for path in layout.shared["train"])
    assert first.boxes.sides.tolist() == [[5, 6, 25, 20], [1, 1, 4, 4]]
    assert first.boxes.scores.tolist() == [1, 0.5]
    assert len(second.boxes) == 0
    for wrong, told in (
        ('"images/a.png": (5, 6, 25);', "line 1: it is no line of a list"),
        ("images/a.png;", "line 1: it is no line of a list"),
        ('"images/a.png"\n', "line 1: it is no line of a list"),
        ('"images/a.png": (5, 6, x, 20);', "a column is no number"),
        ('"images/a.png";\n"images/a.png";', "line 2: a picture is listed twice"),
        ('"../a.png";', "points outside its folder"),
    ):
        train.write_text(wrong)
        with pytest.raises(DataError, match=told):
            find_idl(data, 0)
    train.write_text('"images/c.png";')
    (fault,) = find_idl(data, 0).faults
    assert "1 of 1 not there" in str(fault)


_REAL = Path(__file__).parents[5] / "shared/data/kitti"


@pytest.mark.realdata
@pytest.mark.skipif(not _REAL.is_dir(), reason="no KITTI files here")
def test_real_frames(tmp_path: Path) -> None:
    survey = find_data(boxed("kitti", _REAL), seed=0, cache=tmp_path)
    assert len(survey.scenes) == 13
    assert not survey.faults


def test_a_folder_without_pictures_is_told(tmp_path: Path) -> None:
    for name in ("image_2", "label_2"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=r"no pictures in .*image_2: found none"):
        raise find_boxed(boxed("kitti", tmp_path), 0).faults[0]
