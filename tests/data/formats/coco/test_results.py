"""Objects come back from a COCO file as they went, and others can read it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.tasks.instances.discs import write_scene

from outsize.data.formats.coco.file import Rle
from outsize.data.formats.coco.masks import decode_rle
from outsize.data.formats.coco.results import read_results, write_results
from outsize.data.object import Object, make_object
from outsize.errors import RunError
from outsize.tiles.window import Window


def some_objects() -> list[Object]:
    chance = np.random.default_rng(3)
    found = [make_object(1, Window(0, 0, 64, 5), np.ones((64, 5), np.bool_), score=0.25)]  # whole columns
    for _ in range(8):
        height, width = (int(each) for each in chance.integers(1, 20, 2))
        row, col = int(chance.integers(0, 64 - height)), int(chance.integers(0, 90 - width))
        found.append(
            make_object(0, Window(row, col, height, width), chance.random((height, width)) < 0.6, score=0.5)
        )
    return [each for each in found if each is not None]


def test_objects_come_back_as_they_went(tmp_path: Path) -> None:
    info = write_scene(tmp_path / "scene.tif", np.zeros((64, 90), np.uint8))
    objects = some_objects()
    write_results(tmp_path / "o.json", objects, info, ("a", "b"))
    back = read_results(tmp_path / "o.json")
    assert len(back) == len(objects) > 5
    for one, other in zip(objects, back, strict=True):
        assert (one.class_id, one.window, one.score) == (other.class_id, other.window, other.score)
        assert (one.mask == other.mask).all()


def test_runs_are_those_that_others_decode(tmp_path: Path) -> None:
    info = write_scene(tmp_path / "scene.tif", np.zeros((64, 90), np.uint8))
    objects = some_objects()
    write_results(tmp_path / "o.json", objects, info, ("a", "b"))
    tree = json.loads((tmp_path / "o.json").read_text())
    assert [each["name"] for each in tree["categories"]] == ["a", "b"]
    for each, entry in zip(objects, tree["annotations"], strict=True):
        runs = entry["segmentation"]
        whole = np.zeros((64, 90), np.bool_)
        whole[each.window.slices] = each.mask
        assert (decode_rle(Rle((64, 90), runs["counts"])) == whole).all()
        assert entry["area"] == each.num_px


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text("[1]")
    with pytest.raises(RunError, match="outsize predict"):
        read_results(tmp_path / "o.json")
