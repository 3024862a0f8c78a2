"""The benchmarks of boxes run here in small, so that no time of a GPU is lost to a slip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outsize.data.synthetic import draw_streets

ROOT = Path(__file__).resolve().parents[1]


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *words]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)


@pytest.mark.long
def test_boxes_train(tmp_path: Path) -> None:
    """What is learnt in three steps is nothing: the command says that by its exit code, and has figures for all."""
    draw_streets(tmp_path / "frames", 3, seed=0, size=(96, 320))
    small = ("--num", "6", "--held-out", "3", "--size", "96", "320", "--processes", "1", "--device", "cpu")
    short = ("train.batch=2", "train.epochs=1", "train.samples_per_epoch=4", "train.tile_px=[96,320]")
    given = [word for each in (*short, "train.workers=1") for word in ("--set", each)]
    runs, out = tmp_path / "runs", tmp_path / "result.json"
    common = (str(runs), *small, "--encoder", "resnet18", *given, "--out", str(out))
    done = run("boxes_train", *common, "--jobs", "fastbox", "overfit", "--kitti", str(tmp_path / "frames"))
    assert done.returncode == 1, done.stderr
    done = run("boxes_train", *common, "--jobs", "fcos")
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(out.read_text())["jobs"]
    assert set(found) == {"fastbox", "fcos", "overfit"}
    assert [name for name, each in found.items() if "failed" in each] == []
    assert found["fastbox"]["num_valid"]["hard"] > 0
    assert {"easy", "moderate", "hard"} == set(found["overfit"]["counted_four_times"])
    assert "| fcos | " in done.stdout
    mosaic = ("--side", "320", "--tiles", "128", "192", "--min-score", "0.01", "--device", "cpu")
    done = run("boxes_mosaic", str(runs / "fastbox"), *mosaic, "--out", str(tmp_path / "mosaic.json"))
    told = json.loads((tmp_path / "mosaic.json").read_text())
    assert set(told["with_partner"]) == {"128 at 192", "192 at 128"}, done.stderr
    assert [each["num_tiles"] for each in told["tiles"].values()] == [9, 4]


@pytest.mark.long
def test_boxes_speed(tmp_path: Path) -> None:
    small = ("--batches", "2", "--turns", "1", "--steps", "1", "--size", "64", "200", "--encoder", "resnet18")
    done = run("boxes_speed", *small, "--device", "cpu", "--out", str(tmp_path / "result.json"))
    assert "| training, batch 2, images/s | " in done.stdout, done.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["training"]["2"]["images_per_s"]["ours"] > 0
    same = found["finding"]["2"]["same"]
    assert same["num"] == same["within_2_px"] > 0
