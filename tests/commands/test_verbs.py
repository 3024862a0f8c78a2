"""The verbs after training, one on the files of the other."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
from typer.testing import CliRunner

from outsize.cli import app
from outsize.commands.doctor import doctor
from outsize.commands.plan import plan
from outsize.commands.predict import images_of, predict
from outsize.commands.results.evaluate import evaluate
from outsize.commands.results.info import info
from outsize.commands.results.verify import verify
from outsize.errors import JobError, OutputError, RunError
from outsize.job import PredictSection
from outsize.plan.plan import plan_from_dict
from outsize.progress import Reporter
from outsize.raster.georef import NO_PLACE
from outsize.runs import RunFolder
from outsize.tasks.segment.maps import products_for

QUIET = Reporter("quiet")


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> RunFolder:
    """A copy of the trained run, to be written into."""
    shutil.copytree(trained_run, tmp_path / "copy")
    return RunFolder(tmp_path / "copy")


def test_plan_leaves_what_was_decided(job_path: Path) -> None:
    plan(job_path, overrides=(), device_name="cpu", reporter=QUIET)
    left = RunFolder(job_path.parent / "run")
    plans = {name: plan_from_dict(tree) for name, tree in json.loads(left.plan.read_text()).items()}
    assert plans["train"].batch == 2
    assert plans["predict"].tiles is not None
    assert plans["predict"].tiles.core_px == 64
    assert json.loads(left.facts.read_text())["machine"]["device"] == "cpu"
    assert not left.state.exists()


def test_predict_evaluate_verify_info(run: RunFolder, scenes: Path) -> None:
    scene = scenes / "test-2.tif"
    (summary,) = predict(run.path, [scene], out=None, overrides=(), device_name="cpu", reporter=QUIET)
    names = {path.name for path in run.predictions.iterdir()}
    assert names == {"test-2.tif", "test-2.qml", "test-2_confidence.tif", "test-2.gpkg", "predict.json"}
    assert summary["exact"]
    assert json.loads((run.predictions / "predict.json").read_text())["scenes"] == [summary]

    scores = evaluate(run.path, split="test", reporter=QUIET)
    with (
        rasterio.open(run.predictions / "test-2.tif") as file,
        rasterio.open(scenes / "test-2_labels.tif") as labels,
    ):
        predicted, truth = file.read(1), labels.read(1)
    counted = (truth < 6) & (predicted < 6)
    assert scores["num_px"] == np.count_nonzero(counted)
    assert scores["pixel_accuracy"] == pytest.approx((predicted == truth)[counted].mean(), abs=1e-6)
    assert json.loads(run.scores.read_text())["test"] == scores
    assert run.picture.is_file()

    proof = verify(run.path, overrides=(), device_name="cpu", reporter=QUIET)
    assert proof["exact"]
    assert all(each["passed"] for each in proof["tiled_equals_whole"].values())
    assert proof["halo_probe"] == {"sufficient": True, "tight": True}
    assert json.loads(run.verify.read_text()) == proof

    facts = info(run.path, QUIET)
    assert "test-2.tif" in facts["maps"]
    assert str(scores["mean_iou"]) in facts["scores, test"]


def test_a_shorter_halo_is_marked_and_its_difference_measured(
    run: RunFolder, scenes: Path, tmp_path: Path
) -> None:
    overrides = ["limits.halo_px=4", "limits.allow_approximate=true", "predict.polygons=none"]
    (summary,) = predict(
        run.path,
        [scenes / "test-2.tif"],
        out=tmp_path / "elsewhere",
        overrides=overrides,
        device_name="cpu",
        reporter=QUIET,
    )
    assert not summary["exact"]
    assert summary["relative_difference"] > 1e-9
    assert not run.predictions.exists()
    proof = verify(run.path, overrides=overrides, device_name="cpu", reporter=QUIET)
    assert not proof["exact"]


def test_nothing_predicted_nothing_evaluated(run: RunFolder) -> None:
    with pytest.raises(RunError, match=r"no map of test-2\.tif.*run `outsize predict"):
        evaluate(run.path, split="test", reporter=QUIET)
    assert not run.scores.exists()


def test_doctor_says_what_is_here() -> None:
    facts = doctor(QUIET)
    assert facts["cores"] >= 1
    assert "torch" in facts


def test_a_scene_named_from_one_folder_is_known_in_another(
    run: RunFolder, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenes)
    predict(run.path, [Path("test-2.tif")], out=None, overrides=(), device_name="cpu", reporter=QUIET)
    monkeypatch.chdir(tmp_path)
    assert evaluate(run.path, split="test", reporter=QUIET)["num_px"] > 0


@pytest.mark.parametrize("name", ["test-2.tif", "test-2.gpkg", "test-2.qml", "test-2_confidence.tif"])
def test_predict_leaves_files_of_others_alone(
    run: RunFolder, scenes: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / name).write_text("mine")
    asked = ["predict", str(run.path), str(scenes / "test-2.tif"), "--out", str(tmp_path / "maps"), "-q"]
    refused = CliRunner().invoke(app, [*asked, "--device", "cpu"])
    assert isinstance(refused.exception, OutputError)
    assert f"{name} would be written over: found a file of other make" in str(refused.exception)
    assert [path.name for path in (tmp_path / "maps").iterdir()] == [name]
    assert (tmp_path / "maps" / name).read_text() == "mine"
    assert CliRunner().invoke(app, [*asked, "--device", "cpu", "--overwrite"]).exit_code == 0


def test_predict_takes_the_scenes_of_a_split_or_images_and_not_both(run: RunFolder) -> None:
    cli_run = CliRunner().invoke
    asked = ["predict", str(run.path), "--split", "val", "--device", "cpu", "--set", "predict.polygons=none"]
    assert cli_run(app, asked).exit_code == 0
    entries = json.loads(run.split.read_text())["val"]
    ledger = json.loads((run.predictions / "predict.json").read_text())["scenes"]
    assert [each["scene"] for each in ledger] == [entry["image"] for entry in entries]
    with pytest.raises(JobError, match=r"images besides --split val: found a\.tif"):
        images_of(run.path, "val", ["a.tif"])
    with pytest.raises(RunError, match=r"no such split .*found 'all'"):
        images_of(run.path, "all")


def test_polygons_are_made_of_scenes_and_not_of_pictures_unless_asked_for(tmp_path: Path) -> None:
    picture = SimpleNamespace(georef=NO_PLACE)
    scene = SimpleNamespace(georef=replace(NO_PLACE, transform=(0.5, 0.0, 30.0, 0.0, -0.5, 60.0)))
    for asked, of_picture, of_scene in (
        ("auto", None, "a.gpkg"),
        ("geojson", "a.geojson", "a.geojson"),
        ("none", None, None),
    ):
        section = PredictSection(polygons=asked)
        for each, wanted in ((picture, of_picture), (scene, of_scene)):
            found = products_for(tmp_path / "a", section, each).polygons  # type: ignore[arg-type]
            assert (None if found is None else found.name) == wanted
