"""Two runs compared: scores of both, their difference, and where the maps agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio

from outsize.commands.results.evaluate import evaluate, evaluate_two
from outsize.errors import RunError
from outsize.progress import Reporter
from outsize.runs import RunFolder

QUIET = Reporter("quiet")


@pytest.fixture
def runs(predicted_run: Path, tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    first, second = (RunFolder(Path(shutil.copytree(predicted_run, tmp_path / name))) for name in ("a", "b"))
    return first, second


def _change(run: RunFolder, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Spoil a quarter of a run's map, and give its classes other values; returns the old and the new classes."""
    path = run.predictions / "test-2.tif"
    with rasterio.open(path) as file:
        classes, profile = file.read(1), file.profile
    spoilt = classes.copy()
    spoilt[:80, :104] = np.where(spoilt[:80, :104] < 6, (spoilt[:80, :104] + 1) % 6, 255)
    with rasterio.open(path, "w", **{**profile, "driver": "GTiff", "nodata": 255}) as file:
        file.write(np.where(spoilt < 6, spoilt + shift, 255).astype(np.uint8), 1)
    text = run.job.read_text()
    for value in range(5, -1, -1):
        text = text.replace(f"\nvalue = {value}\n", f"\nvalue = {value + shift}\n")
    run.job.write_text(text)
    return classes, spoilt


def test_a_run_agrees_with_itself(runs: tuple[RunFolder, RunFolder]) -> None:
    result = evaluate_two((runs[0].path, runs[1].path), split="test", reporter=QUIET)
    assert result["agreement"] == 1.0
    assert result["difference"] == 0.0
    scores = evaluate(runs[0].path, split="test", reporter=QUIET)
    assert result["mean_iou"] == [scores["mean_iou"]] * 2
    assert json.loads(runs[0].comparison.read_text()) == result
    assert not runs[1].comparison.exists()


@pytest.mark.parametrize("shift", [0, 20])
def test_what_differs_is_counted(runs: tuple[RunFolder, RunFolder], scenes: Path, shift: int) -> None:
    before, after = _change(runs[1], shift)
    result = evaluate_two((runs[0].path, runs[1].path), split="test", reporter=QUIET)
    valid = before < 6
    assert result["num_px"] == valid.sum()
    assert result["agreement"] == pytest.approx((before == after)[valid].mean(), abs=1e-6)
    with rasterio.open(scenes / "test-2_labels.tif") as file:
        truth = file.read(1)
    counted = valid & (truth < 6)
    expected = [float((classes == truth)[counted].mean()) for classes in (before, after)]
    assert result["pixel_accuracy"] == pytest.approx(expected, abs=1e-6)
    assert result["difference"] == pytest.approx(result["mean_iou"][1] - result["mean_iou"][0], abs=1e-6)
    (scene,) = result["scenes"]
    assert scene["agreement"] == result["agreement"]


def test_runs_of_other_classes_are_refused(runs: tuple[RunFolder, RunFolder]) -> None:
    runs[1].job.write_text(runs[1].job.read_text().replace('"road"', '"street"'))
    with pytest.raises(RunError, match=r"b has other classes: found .*street.*needed .*road"):
        evaluate_two((runs[0].path, runs[1].path), split="test", reporter=QUIET)
    assert not runs[0].comparison.exists()
