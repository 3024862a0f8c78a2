"""Datasets that are not as they were distributed: one line that says what is missing and how to get it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.miniatures import draw_camvid_colours, draw_cityscapes, draw_taco, photo, save

Run = Callable[..., Any]
_CLASS_MAP = 'class_map = "taco-10"'


def job(tmp_path: Path, form: str, more: str = "") -> Path:
    path = tmp_path / "job.toml"
    text = f'run = "{tmp_path.as_posix()}/run"\n[data]\nformat = "{form}"\nroot = "data"\n{more}\n'
    path.write_text(text)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("verb", ["check", "plan", "train"])
def test_a_half_downloaded_cityscapes(run: Run, tmp_path: Path, data: Path, verb: str) -> None:
    draw_cityscapes(data)
    shutil.rmtree(data / "gtFine/val")
    run(verb, job(tmp_path, "cityscapes")).refused(
        "is not complete", "no gtFine/val", "cityscapes-dataset.com"
    )


def test_a_missing_label_file(run: Run, tmp_path: Path, data: Path) -> None:
    draw_cityscapes(data)
    (data / "gtFine/train/ulm/ulm_000000_000020_gtFine_labelIds.png").unlink()
    run("check", job(tmp_path, "cityscapes")).refused("labels of train are missing", "ulm/ulm_000000_000020")
    shutil.rmtree(data / "leftImg8bit/val")
    (data / "leftImg8bit/val/lindau").mkdir(parents=True)
    run("check", job(tmp_path, "cityscapes")).refused("labels of train are missing", "listed above")


def test_a_wrong_label_id(run: Run, tmp_path: Path, data: Path) -> None:
    draw_cityscapes(data)
    path = data / "gtFine/train/ulm/ulm_000000_000020_gtFine_labelIds.png"
    save(path, np.full((96, 128), 99, np.uint8))
    run("check", job(tmp_path, "cityscapes")).refused(path.name, "found 99 at row 0, column 0")


def test_a_label_colour_that_is_none(run: Run, tmp_path: Path, data: Path) -> None:
    draw_camvid_colours(data)
    path = data / "LabeledApproved_full/0001TP_006690_L.png"
    save(path, photo(np.zeros((96, 128), np.uint8)))
    run("check", job(tmp_path, "camvid")).refused(path.name, "one of the 32 colours")


def test_an_unknown_class_map(run: Run, tmp_path: Path, data: Path) -> None:
    draw_taco(data)
    path = job(tmp_path, "coco", 'class_map = "tacos-17"')
    run("check", path).refused("job.toml: unknown class map", "'tacos-17'", "did you mean 'taco-17'?")


def test_taco_without_its_pictures(run: Run, tmp_path: Path, data: Path) -> None:
    draw_taco(data)
    shutil.rmtree(data / "batch_1")
    for verb in ("check", "train"):
        run(verb, job(tmp_path, "coco", _CLASS_MAP)).refused("8 of 8", "batch_1/000000.jpg", "download.py")


def test_no_file(run: Run, tmp_path: Path, data: Path) -> None:
    run("check", job(tmp_path, "coco", _CLASS_MAP)).refused("annotations.json cannot be read", "data.root")
    (data / "annotations.json").write_text(json.dumps({"type": "FeatureCollection", "features": []}))
    run("check", job(tmp_path, "coco", _CLASS_MAP)).refused("it is no COCO file", "annotations.json")
