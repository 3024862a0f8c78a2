"""Boxes of a scene are kept with what they were made of, and read at any size."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from outsize.data.boxes import NEUTRAL, BoxFiles, SceneBoxes, gather
from outsize.data.made import are_made_of
from outsize.errors import RunError


def test_boxes_come_back_as_they_were_kept(tmp_path: Path) -> None:
    path = tmp_path / "cache/a.npz"
    boxes = gather([[1.5, 2, 30, 40], [0, 0, 9, 9]], ["Car", "Van"], occluded=[2, 0], truncated=[0.25, 0])
    SceneBoxes(boxes, np.array([0, NEUTRAL])).save(path, "key")
    held = SceneBoxes.load(path)
    assert held.boxes.sides.tolist() == boxes.sides.tolist()
    assert (held.boxes.labels.tolist(), held.class_ids.tolist()) == (["Car", "Van"], [0, NEUTRAL])
    assert (held.boxes.occluded.tolist(), held.boxes.truncated.tolist()) == ([2, 0], [0.25, 0])
    assert are_made_of(path, "key")
    assert not are_made_of(path, "another")
    assert not are_made_of(tmp_path / "b.npz", "key")


def test_at_a_part_of_the_size_they_are_smaller(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    SceneBoxes(gather([[2, 4, 30, 40]], ["Car"]), np.array([0])).save(path, "key")
    files = pickle.loads(pickle.dumps(BoxFiles()))
    assert files.of(path, 2).boxes.sides.tolist() == [[1, 2, 15, 20]]
    assert files.of(path, 2) is files.of(path, 2)


def test_a_broken_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"half")
    assert not are_made_of(path, "key")
    with pytest.raises(RunError, match="run `outsize check` again"):
        SceneBoxes.load(path)
