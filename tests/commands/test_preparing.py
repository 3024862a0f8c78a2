"""What `plan` and `train` do first: names of bands, and weights to start from only where a training starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from outsize.commands import preparing
from outsize.job import load_job
from outsize.models import smp
from outsize.progress import Reporter
from outsize.raster.read import describe


@pytest.mark.parametrize(("kind", "shape"), [("png", (8, 8, 3)), ("jpg", (8, 8, 3)), ("png", (8, 8, 4))])
def test_a_colour_picture_names_its_bands(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    Image.fromarray(np.zeros(shape, np.uint8)).save(tmp_path / f"a.{kind}")
    assert preparing._own_bands(describe(tmp_path / f"a.{kind}")) == ("red", "green", "blue")


def test_other_images_have_the_names_in_the_file(tmp_path: Path, scenes: Path) -> None:
    assert preparing._own_bands(describe(scenes / "test-2.tif")) == ("blue", "green", "red", "nir")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "grey.png")
    assert preparing._own_bands(describe(tmp_path / "grey.png")) == ("",)


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
        preparing._build(job, ("blue", "green", "red", "nir"), starting, Reporter("quiet"))
        assert asked == [("resnet18", "imagenet")] * starting
