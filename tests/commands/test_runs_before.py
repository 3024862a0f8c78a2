"""Run folders that an earlier outsize left still predict, resume, score and report: one of each task, as it was."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from outsize.commands.predict import predict
from outsize.commands.results.evaluate import evaluate, evaluate_two
from outsize.commands.results.report import report
from outsize.commands.train import train
from outsize.progress import Reporter
from outsize.runs import RunFolder

KEPT = Path(__file__).with_name("runs_before")
TASKS = ("segment", "instances")
_QUIET = Reporter("quiet")


def _laid_out(kind: str, folder: Path) -> Path:
    """Lay a run out as it was; weights that are almost all zeros lie there compressed, and paths without their root."""
    here = folder / kind
    shutil.copytree(KEPT / kind, here)
    for path in here.rglob("*"):
        if path.suffix in (".json", ".toml"):
            path.write_text(path.read_text().replace("@HERE@", folder.as_posix()))
        elif path.suffix == ".xz":
            path.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
            path.unlink()
    return here / "run"


@pytest.fixture
def segmented(tmp_path: Path) -> Path:
    return _laid_out("segment", tmp_path)


@pytest.fixture
def detected(tmp_path: Path) -> Path:
    return _laid_out("instances", tmp_path)


def _kept(path: str) -> Any:
    return json.loads((KEPT / path).read_text())


def test_maps_are_predicted_as_before(segmented: Path) -> None:
    before = _pixels(segmented / "predictions" / "test.tif")
    [entry] = predict(segmented, [], out=None, overrides=(), device_name="cpu", reporter=_QUIET)
    [known] = _kept("segment/run/predictions/predict.json")["scenes"]
    assert set(entry) == set(known)
    assert [entry[each] for each in ("files", "exact", "equals", "precision")] == [
        known[each] for each in ("files", "exact", "equals", "precision")
    ]
    assert np.mean(_pixels(segmented / "predictions" / "test.tif") == before) > 0.99


def test_objects_are_predicted_as_before(detected: Path) -> None:
    [entry] = predict(detected, [], out=None, overrides=(), device_name="cpu", reporter=_QUIET)
    [known] = _kept("instances/run/predictions/predict.json")["scenes"]
    assert set(entry) == set(known)
    assert entry["files"] == known["files"]
    assert entry["num_objects"] > 0


def test_maps_of_before_have_the_scores_of_before(segmented: Path) -> None:
    known = _kept("segment/run/scores.json")["test"]
    told = evaluate(segmented, split="test", reporter=_QUIET)
    assert set(told) == set(known)
    assert (told["mean_iou"], told["confusion"]) == (known["mean_iou"], known["confusion"])
    assert evaluate_two((segmented, segmented), split="test", reporter=_QUIET)["agreement"] == 1.0


def test_objects_of_before_have_the_scores_of_before(detected: Path) -> None:
    known = _kept("instances/run/scores.json")["test"]
    told = evaluate(detected, split="test", reporter=_QUIET)
    assert {name: each for name, each in told.items() if name not in ("scenes", "official")} == {
        name: each for name, each in known.items() if name not in ("scenes", "official")
    }
    assert evaluate_two((detected, detected), split="test", reporter=_QUIET)["agreement"] == 1.0


@pytest.mark.parametrize("kind", TASKS)
def test_a_training_of_before_goes_on(kind: str, tmp_path: Path) -> None:
    run = RunFolder(_laid_out(kind, tmp_path))
    before = run.metrics.read_text().splitlines()
    train(run.path.parent / "job.toml", overrides=(), device_name="cpu", mode="resume", reporter=_QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines[: len(before)] == [json.loads(line) for line in before]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1, 2]


@pytest.mark.parametrize("kind", TASKS)
def test_a_run_of_before_is_reported(kind: str, tmp_path: Path) -> None:
    run = _laid_out(kind, tmp_path)
    page = report([run], out=None, reporter=_QUIET).read_text()
    assert f"task {kind}" in page
    assert "Scores: test" in page
    assert "data:image/png" in page
    assert ("What it took of the machine" in page) == (kind == "instances")


def _pixels(path: Path) -> Any:
    with rasterio.open(path) as file:
        return file.read(1)
