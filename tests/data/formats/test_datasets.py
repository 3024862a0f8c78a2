"""Datasets are recognised by their layout, and nothing else is taken for one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.data.formats.classed.digit_files import draw_classes, draw_idx
from tests.miniatures import (
    draw_camvid_colours,
    draw_camvid_index,
    draw_cityscapes,
    draw_taco,
    photo,
    save,
)

from outsize.data.formats.datasets import Dataset, recognise


def found(root: Path) -> Dataset:
    dataset = recognise(root)
    assert dataset is not None
    return dataset


def test_cityscapes(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    dataset = found(tmp_path)
    assert (dataset.format, dataset.num_images, dataset.labels, dataset.is_split) == (
        "cityscapes",
        6,
        "gtFine",
        True,
    )
    assert len(dataset.class_names) == 19
    (tmp_path / "gtFine").rename(tmp_path / "elsewhere")
    assert found(tmp_path).labels == "gtCoarse"


def test_camvid(tmp_path: Path) -> None:
    draw_camvid_index(tmp_path / "index")
    dataset = found(tmp_path / "index")
    assert (dataset.format, dataset.num_images, dataset.is_split) == ("camvid", 6, True)
    draw_camvid_colours(tmp_path / "colours")
    assert not found(tmp_path / "colours").is_split


def test_frames_of_other_names_are_not_camvid(tmp_path: Path) -> None:
    draw_camvid_index(tmp_path)
    save(tmp_path / "train/images/holiday.jpg", photo(np.zeros((30, 40), np.uint8)))
    assert recognise(tmp_path) is None


def test_taco_and_other_coco(tmp_path: Path) -> None:
    tree = draw_taco(tmp_path)
    dataset = found(tmp_path)
    assert (dataset.format, dataset.num_images, dataset.class_map) == ("coco", 8, "taco-10")
    assert len(dataset.class_names) == 11
    for each in tree["categories"]:
        each["name"] = f"kind {each['id']}"
    (tmp_path / "annotations.json").write_text(json.dumps(tree))
    dataset = found(tmp_path)
    assert (dataset.class_map, dataset.labels, dataset.class_names[0]) == (
        None,
        "annotations.json",
        "background",
    )
    assert len(dataset.class_names) == 1 + len({each["category_id"] for each in tree["annotations"]})


@pytest.mark.parametrize(
    "text", ['{"type": "FeatureCollection", "features": []}', "{", '["images", "annotations", "categories"]']
)
def test_other_json_is_not_coco(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.json").write_text(text)
    assert recognise(tmp_path) is None


def test_two_files_are_for_the_user_to_choose_from(tmp_path: Path) -> None:
    draw_taco(tmp_path)
    (tmp_path / "more.json").write_bytes((tmp_path / "annotations.json").read_bytes())
    assert recognise(tmp_path) is None


def test_pictures_with_one_class_each(tmp_path: Path) -> None:
    draw_idx(tmp_path / "idx")
    assert found(tmp_path / "idx") == Dataset("idx", 50, tuple("0123456789"), pictures=True)
    draw_classes(tmp_path / "pets", ("cat", "dog", "owl"))
    assert found(tmp_path / "pets") == Dataset(
        "classes", 18, ("cat", "dog", "owl"), is_split=False, pictures=True
    )
    (tmp_path / "pets/bat").mkdir()  # to be told of by `check`
    assert found(tmp_path / "pets").class_names == ("bat", "cat", "dog", "owl")
    draw_classes(tmp_path / "split/train", ("cat", "dog", "owl"))
    assert found(tmp_path / "split").is_split
    for names in (("cat", "dog"), ("images", "masks", "other")):  # of which one may label the other
        draw_classes(tmp_path / names[0] / "x", names)
        assert recognise(tmp_path / names[0] / "x") is None
