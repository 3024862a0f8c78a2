"""A whole training of objects: three phases, scores by mask AP, what it leaves in the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from outsize.commands.results.info import info
from outsize.commands.train import train
from outsize.losses.instances import TERMS
from outsize.progress import Reporter
from outsize.session.pace import StepPace
from outsize.session.validating import log_and_say
from outsize.tasks import info_of

_QUIET = Reporter("quiet")

_JOB = """
task = "instances"
run = "{run}"
[data]
format = "folders"
root = "."
train = "images/[01234].png"
val = "images/5.png"
labels = "../ids/{{stem}}.png"
classes = [{{name = "disc", value = 1}}]
[model]
name = "maskrcnn"
backbone = "resnet18"
norm = "frozen"
width = 16
head_width = 16
anchor_px = [8, 16, 32, 64, 128]
rois_per_image = 16
least_proposals = 50
least_detections = 5
detections_per_mpx = 10
[train]
tile_px = 64
batch = 2
samples_per_epoch = 8
lr = 1e-4
augment = ["flip"]
phases = [
    {{name = "heads", epochs = 1, trainable = "heads"}},
    {{name = "upper", epochs = 1, trainable = "upper"}},
    {{name = "all", epochs = 1}},
]
"""


@pytest.fixture
def job_path(tmp_path: Path) -> Path:
    """Write six pictures of discs, each with a raster of ids."""
    rows, cols = np.mgrid[:64, :64]
    rng = np.random.default_rng(0)
    for folder in ("images", "ids"):
        (tmp_path / folder).mkdir()
    for number in range(6):
        image = rng.integers(20, 60, (64, 64, 3), dtype=np.uint8)
        ids = np.zeros((64, 64), np.uint8)
        for index, middle in enumerate(((16, 16), (16, 46), (44, 30)), start=1):
            row, col = np.array(middle) + rng.integers(-3, 4, 2)
            disc = (rows - row) ** 2 + (cols - col) ** 2 < 64
            image[disc, 0] += 100
            ids[disc] = index
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
        Image.fromarray(ids).save(tmp_path / "ids" / f"{number}.png")
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(run=(tmp_path / "run").as_posix()))
    return path


def test_three_phases_end_in_a_run_that_tells_all(job_path: Path) -> None:
    run = train(job_path, overrides=(), device_name="cpu", mode="new", reporter=_QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert set(steps[0]["terms"]) == set(TERMS)
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["phase"] for line in epochs] == [0, 1, 2]
    assert all(0 <= line["mask_ap50"] <= 1 for line in epochs)
    card = json.loads(run.best.with_suffix(".json").read_text())
    assert card["task"] == "instances"
    assert card["options"]["nms_iou"] == 0.5
    plans = json.loads(run.plan.read_text())
    assert plans["train"]["exact"]
    assert plans["train"]["tiles"] is None
    assert plans["predict"]["exact"]  # each picture is one window
    assert json.loads((run.path / "usage.json").read_text())["train"]["num_images"] == 24
    assert "mask AP50" in info(run.path, _QUIET)["best weights"]


def test_an_epoch_is_told_by_the_score_of_its_task() -> None:
    said: list[tuple[str, str]] = []

    class Told(Reporter):
        """Keeps what is said."""

        def say(self, event: str, text: str, **_: object) -> None:
            """Keep a line."""
            said.append((event, text))

    class Log:
        """Keeps nothing."""

        def line(self, record: object) -> None:
            """Forget a line."""

    reporter = Told("quiet")
    record = {"kind": "epoch", "epoch": 3, "mask_ap50": 0.25}
    with reporter.bar("train", 1, "step") as bar:
        log_and_say(info_of("instances"), Log(), bar, reporter, StepPace(1), record)  # type: ignore[arg-type]
        log_and_say(info_of("instances"), Log(), bar, reporter, StepPace(1), {**record, "unanswered_px": 7})  # type: ignore[arg-type]
    text = "epoch 3: validation mask AP50 0.2500"
    more = "; warning: 7 pixels count as wrong, for the logits there are NaN or infinite"
    assert said == [("epoch", text), ("epoch", text + more)]
