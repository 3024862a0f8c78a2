"""`predict` and `evaluate` for objects: files that a GIS reads, and scores that a perfect detector deserves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import pytest
import rasterio
import torch
from scipy import ndimage
from tests.tasks.instances.discs import DiscDetector, draw_discs, write_scene

from outsize.card import Card
from outsize.commands.predict import predict
from outsize.commands.results.evaluate import evaluate, evaluate_two
from outsize.data.catalogue import open_data
from outsize.data.split import write_split
from outsize.data.statistics import BandStatistics
from outsize.errors import OutputError, RunError
from outsize.files.ownership import is_ours
from outsize.infer import ready as ready_module
from outsize.infer.ready import Ready
from outsize.infer.stream import Settings
from outsize.job import ObjectsSection, dump_job, load_job
from outsize.library import predict as api
from outsize.plan.plan import Plan, Tiling
from outsize.progress import Reporter
from outsize.runs import RunFolder, write_text
from outsize.tasks.instances.predict import warn_no_place
from outsize.tasks.instances.scene import ObjectProducts
from outsize.tiles.halo import Halo, Reach

JOB = """
task = "instances"
run = "{folder}/run"
[data]
images = ["scene_*.tif"]
labels = "{{stem}}.ids.tif"
split = {{by = "scene", val = 0.0, test = 0.5}}
classes = [{{name = "disc", value = 1, colour = "#ff0000"}}]
[model]
name = "maskrcnn"
[predict.objects]
ids = true
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Make a run whose weights are a perfect detector."""
    for number in range(2):
        picture, _ = draw_discs(230, 300, 25, seed=number)
        write_scene(tmp_path / f"scene_{number}.tif", picture)
        ids, _ = ndimage.label(picture > 0)
        write_scene(tmp_path / f"scene_{number}.ids.tif", ids.astype(np.uint8))
    (tmp_path / "job.toml").write_text(JOB.format(folder=tmp_path))
    job = load_job(tmp_path / "job.toml")
    folder = RunFolder(tmp_path / "run")
    write_text(folder.job, dump_job(job))
    write_split(folder.split, open_data(job.data, seed=0, halo_px=0, cache=folder.labels))
    monkeypatch.setattr(ready_module, "load_ready", lambda *_, **__: _ready(job))
    return folder


def _ready(job: Any) -> Ready:
    card = Card(
        "instances", "maskrcnn", {}, job.data.classes, ("",), "uint8", BandStatistics((0.0,), (255.0,))
    )
    halo = Halo(Reach(64, 64), Reach(64, 64), 32)
    plan = Plan("predict", 2, 1, 1, False, ("tiles overlap",), tiles=Tiling.of(128, halo))
    return Ready(DiscDetector(), card, plan, halo, Settings(2, torch.device("cpu"), num_threads=1), "id")


def test_objects_become_layers_results_ids_and_a_picture(run: RunFolder) -> None:
    (entry,) = predict(run.path, [], out=None, overrides=(), device_name="cpu", reporter=Reporter())
    assert (entry["num_objects"], entry["classes"]) == (25, {"disc": 25})
    meta, _, _, columns = pyogrio.raw.read(entry["map"], layer="disc")
    table = dict(zip(meta["fields"], columns, strict=True))
    assert table["id"].tolist() == list(range(1, 26))
    assert table["area_m2"].sum() == pytest.approx(entry["area_m2"], rel=1e-6)
    assert all(is_ours(Path(entry[what])) for what in ("map", "objects", "ids", "picture"))
    with rasterio.open(entry["ids"]) as file:
        ids = file.read(1)
        assert set(np.unique(ids)) == set(range(26))
    assert Path(entry["picture"]).is_file()
    usage = json.loads((run.path / "usage.json").read_text())["predict"]
    assert usage["num_images"] == 1
    assert usage["s_per_image"] > 0
    again = predict(run.path, [], out=None, overrides=(), device_name="cpu", reporter=Reporter())
    assert again[0]["map"] == entry["map"]


def test_a_perfect_detector_scores_one(run: RunFolder) -> None:
    predict(run.path, [], out=None, overrides=(), device_name="cpu", reporter=Reporter())
    result = evaluate(run.path, split="test", reporter=Reporter())
    assert result["mask"]["ap50"] == 1.0
    assert result["mask"]["ap"] > 0.9
    assert result["map"]["f1"] == 1.0
    assert result["map"]["num_true"] == 25
    if result["official"] is not None:
        assert result["official"]["ap"] == pytest.approx(result["mask"]["ap"], abs=1e-5)
    assert json.loads(run.scores.read_text())["test"]["mask"]["ap50"] == 1.0
    assert run.picture.is_file()


def test_two_runs_of_objects_are_compared(run: RunFolder, tmp_path: Path) -> None:
    quiet = Reporter("quiet")
    (entry,) = predict(run.path, [], out=None, overrides=(), device_name="cpu", reporter=quiet)
    other = RunFolder(Path(shutil.copytree(run.path, tmp_path / "other")))
    path = other.predictions / Path(entry["objects"]).name
    tree = json.loads(path.read_text())
    num = len(tree["annotations"])
    tree["annotations"] = tree["annotations"][5:]
    path.write_text(json.dumps(tree))
    same = evaluate_two((run.path, run.path), split="test", reporter=quiet)
    assert same["agreement"] == 1.0
    told = evaluate_two((run.path, other.path), split="test", reporter=quiet)
    assert told["num_objects"] == [num, num - 5]
    assert told["num_common"] == num - 5
    scores = evaluate(run.path, split="test", reporter=quiet)
    assert told["mask AP50"][0] == scores["mask"]["ap50"] > told["mask AP50"][1]
    assert told["F1"][0] == scores["map"]["f1"] > told["F1"][1]
    assert json.loads((run.path / "compare_objects.json").read_text()) == told
    assert not run.comparison.exists()


def test_a_scene_that_was_not_predicted_is_named(run: RunFolder) -> None:
    with pytest.raises(RunError, match=r"no objects of scene_.*outsize predict"):
        evaluate(run.path, split="test", reporter=Reporter())


def test_files_are_those_that_were_asked_for(tmp_path: Path) -> None:
    few = ObjectProducts(tmp_path / "a.b", ObjectsSection(picture=False, vectors="geojson"))
    assert [path.name for path in few.paths] == ["a.b.geojson", "a.b.coco.json"]
    all_of_them = ObjectProducts(tmp_path / "a", ObjectsSection(ids=True))
    assert [path.name for path in all_of_them.paths] == [
        "a.gpkg",
        "a.coco.json",
        "a_ids.tif",
        "a_objects.png",
    ]
    assert set(all_of_them.names) == {"map", "objects", "ids", "picture"}


def test_points_and_geojson_are_a_matter_of_the_job(run: RunFolder) -> None:
    wishes = (
        "predict.objects.shape=point",
        "predict.objects.vectors=geojson",
        "predict.objects.min_score=0.7",
    )
    (entry,) = predict(run.path, [], out=None, overrides=wishes, device_name="cpu", reporter=Reporter())
    meta, _, _, columns = pyogrio.raw.read(entry["map"])
    assert meta["geometry_type"] == "Point"
    scores = dict(zip(meta["fields"], columns, strict=True))["score"]
    assert scores.min() >= 0.7
    assert entry["num_objects"] == len(scores)
    assert entry["num_objects"] + entry["num_unsure"] == 25


def test_the_library_predicts_objects_too(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load_job(run.job)
    monkeypatch.setattr(api, "load_ready", lambda *_, **__: _ready(job))
    done = api.predict(run.path, tmp_path / "scene_0.tif", tmp_path / "found.gpkg")
    assert done["num_objects"] == 25
    assert len(pyogrio.raw.read(tmp_path / "found.gpkg", layer="disc")[2]) == 25
    with pytest.raises(OutputError, match="unknown kind"):
        api.predict(run.path, tmp_path / "scene_0.tif", tmp_path / "found.tif")


def test_two_coordinate_systems_in_one_call_keep_their_own(run: RunFolder, tmp_path: Path) -> None:
    picture, _ = draw_discs(100, 100, 3)
    paths = [tmp_path / f"other_{epsg}.tif" for epsg in (32633, 32634)]
    for path, epsg in zip(paths, (32633, 32634), strict=True):
        write_scene(path, picture, crs=f"EPSG:{epsg}")
    entries = predict(run.path, paths, out=None, overrides=(), device_name="cpu", reporter=Reporter())
    found = [pyogrio.read_info(each["map"], layer="disc")["crs"] for each in entries]
    assert found == ["EPSG:32633", "EPSG:32634"]


def test_a_picture_without_a_place_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = write_scene(tmp_path / "plain.tif", np.zeros((64, 64), np.uint8), crs=None)
    warn_no_place(info, Reporter("json"))
    assert "no coordinate system" in capsys.readouterr().out
