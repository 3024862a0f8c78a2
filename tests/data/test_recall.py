"""A run's split is opened again as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.data.catalogue import open_data
from outsize.data.recall import recall_images, recall_scenes
from outsize.data.split import write_split
from outsize.errors import RunError
from outsize.job import load_job


def test_scenes_come_back_as_they_were(job_path: Path, tmp_path: Path) -> None:
    data = load_job(job_path).data
    splits = open_data(data, seed=1, halo_px=8, cache=tmp_path / "labels")
    write_split(tmp_path / "split.json", splits)
    assert recall_scenes(tmp_path / "split.json", "test", data) == splits.test
    assert recall_images(tmp_path / "split.json", "train") == [scene.image.path for scene in splits.train]


def test_a_split_that_is_not_there(job_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text('{"train": [], "val": [], "test": []}')
    with pytest.raises(RunError, match="no scene"):
        recall_images(path, "test")
    with pytest.raises(RunError, match="one of train, val, test"):
        recall_images(path, "tset")
