"""Folders of classes: who is in which class and split, and one line for all that is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.formats.classed.digit_files import draw_classes, section

from outsize.data.catalogue import make_splits, open_data
from outsize.data.checking.check import check_data, open_and_count
from outsize.data.checking.problems import Problem, merged
from outsize.data.recall import recall_scenes
from outsize.data.split import write_split
from outsize.errors import DataError, JobError
from outsize.job import DataSection
from outsize.progress import Reporter

NAMES = ("cat", "dog")


def problems_of(data: DataSection, tmp_path: Path) -> list[Problem]:
    survey, known = open_and_count(
        data, seed=0, cache=tmp_path / "cache", num_threads=2, reporter=Reporter("quiet")
    )
    splits = make_splits(survey, data, seed=0, halo_px=0)
    return merged(check_data(data, splits, num_threads=2, known=known).problems)


def test_a_picture_is_of_the_class_of_its_folder(tmp_path: Path) -> None:
    draw_classes(tmp_path / "data")
    data = section("classes", tmp_path / "data", NAMES, split={"val": 0.25, "test": 0.25})
    splits = open_data(data, seed=0, halo_px=0, cache=tmp_path / "cache")
    assert [len(held) for _, held in splits.items()] == [6, 3, 3]
    for scene in (*splits.train, *splits.val, *splits.test):
        labels = np.asarray(Image.open(scene.labels.path))
        assert (scene.picture_px, labels.shape) == ((12, 16), (12, 16))
        assert np.unique(labels).tolist() == [NAMES.index(scene.image.path.parent.name)]
    assert len(list((tmp_path / "cache").iterdir())) == 2  # not a file for each picture
    counts = check_data(data, splits, num_threads=1).class_px
    assert sum(each.sum() for each in counts.values()) == 12
    write_split(tmp_path / "split.json", splits)
    assert recall_scenes(tmp_path / "split.json", "train", data) == splits.train


def test_splits_may_be_folders(tmp_path: Path) -> None:
    draw_classes(tmp_path / "train")
    draw_classes(tmp_path / "test", num=2, size=(10, 10))
    splits = open_data(section("classes", tmp_path, NAMES), seed=0, halo_px=0, cache=tmp_path / "cache")
    assert [len(held) for _, held in splits.items()] == [12, 0, 4]


def test_what_is_wrong_is_one_line_each(tmp_path: Path) -> None:
    root = tmp_path / "data"
    draw_classes(root)
    data = section("classes", root, (*NAMES, "owl"), split={"val": 0.0, "test": 0.0}, max_bad_share=0.2)
    (root / "owl").mkdir()
    assert [
        "class 'owl' is empty: found no picture of it in train" in each.text
        for each in problems_of(data, tmp_path)
    ] == [True]
    (root / "owl").rmdir()
    data = section("classes", root, NAMES, split={"val": 0.0, "test": 0.0}, max_bad_share=0.2)
    for name in ("a", "b"):
        Image.fromarray(np.full((20, 30, 3), ord(name), np.uint8)).save(root / f"dog/{name}.png")
    (sizes,) = problems_of(data, tmp_path)
    assert not sizes.fatal
    assert sizes.text.startswith(
        "pictures have 2 sizes, from 12 x 16 px to 20 x 30 px, most of them 12 x 16 px"
    )
    for name in ("c", "d", "e"):
        Image.fromarray(np.full((12, 16), ord(name), np.uint8)).save(root / f"dog/{name}.png")
    bands, sizes = problems_of(data, tmp_path)
    assert bands.fatal
    assert "found 1 bands, needed 3" in bands.text
    assert "the same in 2 more" in bands.text


def test_a_corrupt_picture_is_one_line_or_set_aside(tmp_path: Path) -> None:
    root = tmp_path / "data"
    draw_classes(root)
    path = root / "cat/0.png"
    path.write_bytes(path.read_bytes()[:60])
    (problem,) = problems_of(section("classes", root, NAMES, split={"val": 0.0, "test": 0.0}), tmp_path)
    assert problem.fatal
    assert str(path) in problem.text
    assert "\n" not in problem.text
    lenient = section("classes", root, NAMES, split={"val": 0.0, "test": 0.0}, max_bad_share=0.1)
    splits = open_data(lenient, seed=0, halo_px=0, cache=tmp_path / "cache")
    found = check_data(lenient, splits, num_threads=1)
    assert [each.path for each in found.splits.set_aside] == [path]
    assert found.class_px["train"].tolist() == [5, 6]


def test_a_folder_of_no_class_and_no_picture_at_all(tmp_path: Path) -> None:
    draw_classes(tmp_path / "data", ("cat", "dgo"))
    with pytest.raises(JobError, match=r"'dgo', needed one of data.classes: cat, dog; .* nearest: 'dog'"):
        open_data(section("classes", tmp_path / "data", NAMES), seed=0, halo_px=0, cache=tmp_path / "cache")
    (tmp_path / "none/cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no picture in the folders of"):
        open_data(section("classes", tmp_path / "none", NAMES), seed=0, halo_px=0, cache=tmp_path / "cache")
