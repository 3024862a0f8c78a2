"""`outsize check`: a table or JSON lines, data.json and split.json, and a refusal that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import rasterio

from outsize.commands.check import blocks_halo_px
from outsize.commands.check import check as check_command
from outsize.job import load_job
from outsize.progress import Reporter

Run = Callable[..., object]


@pytest.fixture
def own_job(own_job: Path, own_scenes: Path) -> Path:
    """A job whose training labels hold every class."""
    with rasterio.open(own_scenes / "train-0_labels.tif", "r+") as file:
        labels = file.read(1)
        labels[:6, 0] = range(6)
        file.write(labels, 1)
    return own_job


def test_an_empty_class_is_refused_by_name(run: Run, job_path: Path) -> None:
    lava = '\n[[data.classes]]\nname = "lava"\nvalue = 9\n'
    job_path.write_text(job_path.read_text() + lava)
    run("check", job_path).refused("class 'lava' is empty", "train")


def test_good_data(run: Run, own_job: Path, tmp_path: Path) -> None:
    done = run("check", own_job)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    found = next(line for line in lines if line["event"] == "check")
    assert found["images"] == {"train": 1, "val": 1, "test": 1}
    tree = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(tree["statistics"]["mean"]) == 4
    assert sum(tree["class_px"]["train"]) <= 160 * 208
    assert len(tree["scenes"]) == 3
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert split["test"][0]["image"].endswith("test-2.tif")


def test_a_person_gets_a_table(own_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_command(own_job, overrides=(), reporter=Reporter("bar"))
    shown = capsys.readouterr().out
    assert "train (1 image)" in shown
    assert "forest" in shown
    assert "nir" in shown


def test_missing_labels_are_refused(run: Run, own_job: Path, own_scenes: Path) -> None:
    (own_scenes / "train-0_labels.tif").unlink()
    done = run("check", own_job)
    done.refused("train-0.tif are missing", "train-0_labels.tif")


def test_the_gap_of_blocks_is_the_models_halo(own_job: Path, own_scenes: Path) -> None:
    assert blocks_halo_px(load_job(own_job), 4) == 0
    text = own_job.read_text()
    for split in ("train", "val", "test"):
        text = text.replace(f'{split} = ["', f'{"images" if split == "train" else "# " + split} = ["')
    own_job.write_text(text + '[data.split]\nby = "blocks"\nblock_px = 64\n')
    derived = blocks_halo_px(load_job(own_job), 4)
    assert derived > 8
    assert blocks_halo_px(load_job(own_job, ["data.split.gap_px=5"]), 4) == 0  # the job says so itself
    # a shorter halo for maps brings training and test blocks no nearer: `train` shares out by what the model sees
    assert blocks_halo_px(load_job(own_job, ["limits.halo_px=7"]), 4) == derived
