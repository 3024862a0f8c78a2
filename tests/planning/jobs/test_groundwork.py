"""What `plan` and `train` do first: weights to start from only where a training starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.job import load_job
from outsize.models.pretrained import smp
from outsize.planning.jobs import groundwork
from outsize.progress import Reporter


def test_weights_are_fetched_only_where_a_training_starts(
    job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(*what: str) -> tuple[None, str]:
        asked.append(what)
        return None, "no network"

    monkeypatch.setattr(smp, "download", download)
    text = job_path.read_text().replace("levels = 3\nwidth = 4\n", 'weights = "imagenet"\n')
    job_path.write_text(text.replace('"unet"', '"smp:Linknet/resnet18"'))
    job = load_job(job_path)
    for starting in (False, True):
        groundwork._build(job, ("blue", "green", "red", "nir"), None, Reporter("quiet"), starting=starting)
        assert asked == [("resnet18", "imagenet")] * starting
