"""The benchmark of objects runs here in small: the same weights find what torchvision's own detector finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tasks.instances.discs import draw_discs, write_scene

from outsize.card import Card, save_checkpoint
from outsize.data.catalogue import open_data
from outsize.data.split import write_split
from outsize.data.statistics import BandStatistics
from outsize.job import dump_job, load_job
from outsize.models import build_model
from outsize.runs import RunFolder, write_text

ROOT = Path(__file__).resolve().parents[1]
JOB = """
task = "instances"
[data]
images = ["scene_*.tif"]
labels = "{stem}.ids.tif"
split = {by = "scene", val = 0.0, test = 0.5}
classes = [{name = "disc", value = 1}]
[model]
name = "maskrcnn"
"""
TINY = {"backbone": "resnet18", "width": 16, "head_width": 32, "anchor_px": [8, 16, 32, 64, 128]}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    for number in range(2):
        picture, _ = draw_discs(128, 128, 8, seed=number)
        write_scene(tmp_path / f"scene_{number}.tif", picture)
        write_scene(tmp_path / f"scene_{number}.ids.tif", (picture > 0).astype(np.uint8))
    (tmp_path / "job.toml").write_text(JOB)
    job = load_job(tmp_path / "job.toml")
    folder = RunFolder(tmp_path / "run")
    write_text(folder.job, dump_job(job))
    write_split(folder.split, open_data(job.data, seed=0, halo_px=0, cache=folder.labels))
    torch.manual_seed(0)
    model = build_model("maskrcnn", num_classes=1, in_channels=1, **TINY)
    with torch.no_grad():  # what is not trained must still be sure of something
        model.state_dict()["roi_heads.box_predictor.cls_score.bias"].copy_(torch.tensor([0.0, 1.0]))
    card = Card(
        "instances", "maskrcnn", TINY, job.data.classes, ("",), "uint8", BandStatistics((0.0,), (255.0,))
    )
    save_checkpoint(folder.best, model, card)
    return folder


@pytest.mark.long
def test_objects_speed(run: RunFolder, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "objects_speed.py"),
        str(run.path),
        "--device",
        "cpu",
    ]
    command += ["--side", "128", "--batch", "2", "--rounds", "1", "--out", str(tmp_path / "result.json")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    ours = found["ours"]["fp32"]
    assert ours["num_sure"] > 10
    assert ours["matched_at_iou_0.9"] == 1.0
    assert ours["scores_within_0.02"] == 1.0
    assert ours["faster"] > 0
