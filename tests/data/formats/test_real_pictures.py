"""The formats of datasets on pictures that nobody here drew; skipped where those are absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outsize.commands.data.check import check
from outsize.commands.data.init import init
from outsize.commands.train import train
from outsize.data.formats.coco.file import read_coco
from outsize.progress import Reporter

_REAL = Path(__file__).parents[4] / "shared/data"

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not _REAL.is_dir(), reason="the real datasets are not here"),
]
QUIET = Reporter("quiet")


def test_camvid(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = init(_REAL / "camvid", out=tmp_path / "job.toml", overwrite=False, reporter=QUIET)
    check(job, overrides=[f"run={run.as_posix()}"], reporter=QUIET)
    split = json.loads((run / "split.json").read_text())
    assert {name: len(split[name]) for name in ("train", "val", "test")} == {
        "train": 367,
        "val": 101,
        "test": 0,
    }
    counts = json.loads((run / "data.json").read_text())["class_px"]["train"]
    assert min(counts) > 100_000


def test_taco() -> None:
    found = read_coco(_REAL / "taco/annotations.json.gz")
    assert (len(found.pictures), len(found.categories)) == (1500, 60)
    assert sum(len(picture.annotations) for picture in found.pictures) == 4784


@pytest.mark.long
def test_a_network_learns_nuts_from_their_outlines(tmp_path: Path) -> None:
    """Mean IoU of at least 0.7 on the photos it learnt from: masks lie where the pictures show what they say."""
    run = tmp_path / "run"
    job = init(_REAL / "nuts", out=tmp_path / "job.toml", overwrite=False, reporter=QUIET)
    overrides = [f"run={run.as_posix()}", "data.shrink=4", "data.split.val=0.0", "data.split.test=0.0"]
    overrides += ["model.width=12", "train.tile_px=96", "train.samples_per_epoch=320", "train.epochs=5"]
    overrides += ["train.lr=4e-3", "train.rare_share=0.5", "train.class_weights=median", "train.workers=1"]
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=QUIET)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["mean_iou"] >= 0.7


OBJECTS = {"nuclei": (498, 21_198, 375), "nuts": (18, 165, 13), "buildings": (1, 108, 108)}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name: str, tmp_path: Path) -> None:
    num_images, num_objects, most = OBJECTS[name]
    job = init(_REAL / name, out=tmp_path / "job.toml", overwrite=False, reporter=QUIET, objects=True)
    splits = ["data.split.by=scene", "data.split.val=0", "data.split.test=0"]
    check(job, overrides=[f"run={tmp_path.as_posix()}/run", *splits], reporter=QUIET)
    told = json.loads((tmp_path / "run/data.json").read_text())
    assert len(told["scenes"]) == num_images
    assert sum(told["objects"]["of_class"]["train"]) == num_objects
    assert (told["objects"]["most"], told["objects"]["num_lost"]) == (most, 0)
