"""Boxes from job to report: trained for a step, predicted into files, scored; what is wrong is one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import shapely
import torch
from PIL import Image
from tests.tasks.detect.painted import STATISTICS, PaintedFinder, paint, write_scene

from outsize.card import Card
from outsize.commands.predict import predict
from outsize.commands.results.evaluate import evaluate, evaluate_two
from outsize.commands.results.report import report
from outsize.commands.train import train
from outsize.data.boxes import no_boxes
from outsize.data.formats.boxed import read_kitti
from outsize.data.synthetic import draw_streets
from outsize.errors import OutsizeError, RunError
from outsize.files.ownership import NONE_GIVEN
from outsize.infer.ready import Ready
from outsize.infer.stream import Settings
from outsize.job import ClassSpec, PredictSection, load_job
from outsize.metrics.kitti import kitti_scores
from outsize.plan.plan import Tiling, unplanned
from outsize.progress import Reporter
from outsize.raster.reading import describe
from outsize.runs import RunFolder
from outsize.tasks.detect.files import as_named, read_boxes, write_boxes
from outsize.tasks.detect.predict import predict_one, predict_scenes, products_for
from outsize.tasks.detect.settle import FoundBoxes, no_found
from outsize.tasks.detect.terms import halo

QUIET = Reporter("quiet")
JOB = """
task = "detect"
run = "{folder}/run"
[data]
format = "kitti"
root = "{folder}"
split = {{ by = "scene", val = 0.25, test = 0.25 }}
[model]
name = "fastbox"
encoder = "resnet18"
[train]
epochs = 1
tile_px = [64, 96]
batch = 2
augment = ["flip", "turn"]
workers = 1
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return _with_streets(tmp_path, (75, 248))


def _with_streets(folder: Path, size: tuple[int, int]) -> Path:
    draw_streets(folder, 4, seed=0, size=size)
    path = folder / "job.toml"
    path.write_text(JOB.format(folder=folder))
    return path


def test_from_job_to_report(job: Path) -> None:
    torch.manual_seed(0)
    train(job, overrides=[], device_name="cpu", mode="new", reporter=QUIET)
    run = RunFolder(Path(load_job(job).run))
    (entry,) = predict(run.path, [], out=None, overrides=[], device_name="cpu", reporter=QUIET)
    for name in ("map", "kitti", "picture"):
        assert Path(entry[name]).is_file(), name
    found = read_boxes(Path(entry["map"]))
    assert len(found) == entry["num_boxes"] + entry["num_unsure"]
    text = read_kitti(Path(entry["kitti"]), 16)
    np.testing.assert_allclose(text.sides, found.sides, atol=0.011)
    scores = evaluate(run.path, split="test", reporter=QUIET)
    assert set(scores["kitti"]) == {"Car", "Pedestrian", "Cyclist"}
    assert set(scores["kitti"]["Car"]) == {"height", "plain"}
    told = evaluate_two((run.path, run.path), split="test", reporter=QUIET)
    assert all(here == there for here, there in told["figures"].values())
    report([run.path], out=None, reporter=QUIET)
    page = (run.path / "report.html").read_text()
    assert "KITTI, Car" in page
    assert "precision over recall" in page
    with pytest.raises(RunError, match="no boxes of"):
        evaluate(run.path, split="val", reporter=QUIET)
    Path(entry["map"]).write_text("{}")
    with pytest.raises(RunError, match="cannot be read"):
        evaluate(run.path, split="test", reporter=QUIET)


def test_a_detector_that_finds_nothing_has_files_and_scores(job: Path) -> None:
    overrides = ["model.score=1.0"]
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=QUIET)
    run = RunFolder(Path(load_job(job).run))
    (entry,) = predict(run.path, [], out=None, overrides=(), device_name="cpu", reporter=QUIET)
    assert Path(entry["kitti"]).read_text() == ""
    assert json.loads(Path(entry["map"]).read_text())["annotations"] == []
    scores = evaluate(run.path, split="test", reporter=QUIET)
    assert scores["num_found"] == 0
    assert scores["kitti"]["Car"]["height"]["ap_40"]["hard"] in (0, None)  # none: no object counts
    assert scores["box"]["ap"] == 0
    report([run.path], out=None, reporter=QUIET)
    assert "do not reach all recalls" in (run.path / "report.html").read_text()


def test_pictures_that_are_read_smaller_are_scored_in_the_pixels_of_their_files(tmp_path: Path) -> None:
    job = _with_streets(tmp_path, (151, 497))
    train(job, overrides=["data.shrink=2"], device_name="cpu", mode="new", reporter=QUIET)
    run = RunFolder(Path(load_job(job).run))
    (entry,) = predict(run.path, [], out=None, overrides=(), device_name="cpu", reporter=QUIET)
    assert (entry["height"], entry["width"]) == (151, 497)
    truth = read_kitti(tmp_path / "label_2" / f"{Path(entry['scene']).stem}.txt")
    true = truth.take(np.isin(truth.labels, ["Car", "Pedestrian", "Cyclist"]))
    ids = np.array([["Car", "Pedestrian", "Cyclist"].index(label) for label in true.labels])
    perfect = FoundBoxes(true.sides, ids, true.scores)
    names = ["Car", "Pedestrian", "Cyclist"]
    write_boxes(Path(entry["map"]), perfect, describe(Path(entry["scene"])), names)
    scores = evaluate(run.path, split="test", reporter=QUIET)
    assert scores["box"]["ap"] == pytest.approx(1)
    counted = kitti_scores([truth], [as_named(perfect, names)], ("Car",)).as_dict()["Car"]
    assert scores["kitti"]["Car"]["height"]["num_valid"] == counted["height"]["num_valid"]
    with Image.open(run.picture) as picture:
        assert picture.width == 497


_LINE = "Car 0 0 -1 {} 1.5 1.6 4 1 1 20 -1.6\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Car 0 0 -1 1 2 3\n", "line 1: it is no box: found 7 columns"),
        (_LINE.format("90 10 20 40"), "box 1: it has no area"),
        (_LINE.format("20 nan 90 40"), "line 1: a column is no number"),
        (_LINE.format("900 200 1100 300"), "labels of a picture of another size"),
        (_LINE.format("20 10 90 40").replace("Car", "Bus"), "that the job does not list: found 'Bus'"),
        (None, "a label file for each picture"),
    ],
)
def test_bad_labels_are_one_line_and_leave_nothing_of_a_training(
    job: Path, text: str | None, told: str
) -> None:
    path = job.parent / "label_2/000001.txt"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(OutsizeError, match=told) as error:
        train(job, overrides=(), device_name="cpu", mode="new", reporter=QUIET)
    assert "\n" not in str(error.value)
    assert "000001.txt" in str(error.value)
    run = Path(load_job(job).run)
    assert not list(run.rglob("*.safetensors")) + list(run.rglob("000001*")) + list(run.rglob("*.part"))


def _ready() -> Ready:
    model = PaintedFinder().eval()
    classes = (ClassSpec(name="car", value=1, colour=(0, 255, 0)),)
    bands = ("band_1", "band_2", "band_3")
    card = Card("detect", "fastbox", {}, classes, bands, "uint8", STATISTICS)
    plan = unplanned(tiles=Tiling(128, (64, 64), (64, 64), 32))
    return Ready(model, card, plan, halo(model, 3), Settings(4, torch.device("cpu")))


def _section(folder: Path) -> PredictSection:
    path = folder / "plain.toml"
    path.write_text(JOB.format(folder=folder))
    return load_job(path).predict


def test_one_scene_into_one_file(tmp_path: Path) -> None:
    pixels, sides = paint(300, 400, 20, seed=2)
    scene = describe(write_scene(tmp_path / "scene.tif", pixels))
    done = predict_one(_ready(), scene, [tmp_path / "found.json"], _section(tmp_path), NONE_GIVEN)
    assert done["num_boxes"] + done["num_unsure"] == len(sides)
    assert sorted(read_boxes(tmp_path / "found.json").sides.tolist()) == sorted(sides.tolist())
    tree = json.loads((tmp_path / "found.json").read_text())
    assert tree["categories"] == [{"id": 1, "name": "car"}]


@pytest.mark.parametrize("shrink", [1, 2])
def test_files_have_the_pixels_of_the_picture_on_disk(shrink: int, tmp_path: Path) -> None:
    pixels, sides = paint(150, 200, 10, seed=2)
    large, sides = pixels.repeat(2, 1).repeat(2, 2), sides * 2
    large = np.pad(large, ((0, 0), (0, 1), (0, 1)))  # what is left of a square at the edge is not read
    Image.fromarray(np.moveaxis(large, 0, -1)).save(tmp_path / "a.png")
    info = replace(describe(tmp_path / "a.png").shrunk(shrink), band_names=("band_1", "band_2", "band_3"))
    section = _section(tmp_path)
    section = section.model_copy(update={"boxes": section.boxes.model_copy(update={"vectors": "gpkg"})})
    products = products_for(tmp_path / "a", section, info)
    (entry,) = predict_scenes(tmp_path, _ready(), [(info, products)], section, QUIET)
    assert (entry["height"], entry["width"]) == (301, 401)
    (image,) = json.loads((tmp_path / "a.json").read_text())["images"]
    assert (image["height"], image["width"]) == (301, 401)
    found = read_boxes(tmp_path / "a.json")
    assert sorted(found.sides.tolist()) == sorted(sides.tolist())
    assert sorted(read_kitti(tmp_path / "a.txt", 16).sides.tolist()) == sorted(sides.tolist())
    outlines = shapely.from_wkb(pyogrio.raw.read(tmp_path / "a.gpkg", layer="car")[2])
    corners = np.abs(shapely.get_coordinates(outlines))
    assert corners.max(0).tolist() == found.take(found.scores >= 0.5).sides[:, 2:].max(0).tolist()
    with Image.open(tmp_path / "a_boxes.png") as picture:
        assert picture.width == 401


def test_scenes_with_a_place_have_layers_and_pictures_have_none(tmp_path: Path) -> None:
    pixels, sides = paint(300, 400, 20, seed=2)
    placed = describe(write_scene(tmp_path / "placed.tif", pixels))
    Image.fromarray(np.moveaxis(pixels, 0, -1)).save(tmp_path / "plain.png")
    plain = replace(describe(tmp_path / "plain.png"), band_names=placed.band_names)
    section = _section(tmp_path)
    scenes = [(info, products_for(tmp_path / info.path.stem, section, info)) for info in (placed, plain)]
    names = [[path.name for path in products.paths] for _, products in scenes]
    assert names[0] == ["placed.json", "placed.txt", "placed.gpkg", "placed_boxes.png"]
    assert names[1] == ["plain.json", "plain.txt", "plain_boxes.png"]
    predict_scenes(tmp_path, _ready(), scenes, section, QUIET)
    layer = pyogrio.raw.read(tmp_path / "placed.gpkg", layer="car")
    sure = read_boxes(tmp_path / "placed.json").scores >= section.boxes.min_score
    assert len(layer[2]) == int(sure.sum()) < len(sides)
    with Image.open(tmp_path / "plain_boxes.png") as picture:
        assert picture.width == 400
    assert len(as_named(no_found(), ["car"])) == len(no_boxes()) == 0
