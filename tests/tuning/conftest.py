"""A job that says what may vary, and trainings that only write what a worker reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outsize.job import Job, load_job
from outsize.tuning import trial

_JOB = """
run = "{run}"
[data]
train = ["a.tif"]
classes = [{{name = "a", value = 0}}, {{name = "b", value = 1}}]
[model]
name = "unet"
[train]
epochs = 3
[tune]
train.lr = {{low = 1e-4, high = 1e-2, log = true}}
train.batch = [4, 8]
"""

# what a trial leaves, without a training; {body} sees `run`, `batch` and `epoch(number, score)`
_TRAINING = """
import json, os, sys, tomllib, time
from pathlib import Path
run = Path(sys.argv[2]).parent
job = tomllib.loads((run / "job.toml").read_text())
batch = job["train"]["batch"]
def epoch(number, score):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "epoch", "epoch": number, "step": 1, "mean_iou": score}) + "\\n")
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """The job of a tuning."""
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(run=tmp_path / "run"))
    return load_job(path)


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have trials run this body instead of a training."""
    return lambda body: monkeypatch.setattr(trial, "_START", _TRAINING + body)
