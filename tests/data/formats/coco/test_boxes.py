"""Boxes of COCO files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.formats.boxed.box_pictures import boxed, file, opened, picture

from outsize.data.boxes import NEUTRAL
from outsize.data.formats.coco.finding import find_coco
from outsize.errors import DataError, JobError


def coco(root: Path, *annotations: dict[str, Any], size: tuple[int, int] = (40, 60)) -> Path:
    picture(root / "a.png")
    rows = [{"id": number, "image_id": 1, **each} for number, each in enumerate(annotations)]
    tree = {
        "images": [{"id": 1, "file_name": "a.png", "height": size[0], "width": size[1]}],
        "categories": [{"id": 1, "name": "car"}, {"id": 2, "name": "bus"}],
        "annotations": rows,
    }
    file(root / "annotations.json", json.dumps(tree))
    return root


def test_boxes_crowds_and_outlines_without_a_box(tmp_path: Path) -> None:
    outline = [[2.0, 3.0, 8.0, 3.0, 8.0, 7.0, 2.0, 7.0]]
    coco(
        tmp_path,
        {"category_id": 1, "bbox": [-1.5, 2.5, 10, 20], "segmentation": outline},
        {"category_id": 1, "bbox": [1, 2, 10, 20], "iscrowd": 1},
        {"category_id": 2, "segmentation": outline},
    )
    data = boxed("coco", tmp_path, "car", left_out=["bus"], split={"val": 0, "test": 0})
    held = opened(find_coco(data, 0), tmp_path / "a.png", tmp_path / "cache")
    assert held.boxes.sides.tolist() == [[0, 2.5, 8.5, 22.5], [1, 2, 11, 22]]
    assert held.class_ids.tolist() == [0, NEUTRAL]
    both = boxed("coco", tmp_path, "car", joined={"bus": "car"}, split={"val": 0, "test": 0})
    held = opened(find_coco(both, 0), tmp_path / "a.png", tmp_path / "cache")
    assert held.boxes.sides[2].tolist() == [2, 3, 8, 7]


def test_another_size_and_unknown_categories_are_refused(tmp_path: Path) -> None:
    coco(tmp_path, {"category_id": 2, "bbox": [1, 2, 10, 20]})
    data = boxed("coco", tmp_path, "car", split={"val": 0, "test": 0})
    with pytest.raises(JobError, match="that the job does not list: found 'bus'"):
        opened(find_coco(data, 0), tmp_path / "a.png", tmp_path / "cache")
    coco(tmp_path, {"category_id": 1, "bbox": [1, 2, -3, 20]})
    with pytest.raises(DataError, match=r"annotations\.json, a\.png, box 1: it has no area"):
        opened(find_coco(data, 0), tmp_path / "a.png", tmp_path / "cache")
    coco(tmp_path, size=(40, 61))
    with pytest.raises(DataError, match="needed 40 x 61 px"):
        opened(find_coco(data, 0), tmp_path / "a.png", tmp_path / "cache")
