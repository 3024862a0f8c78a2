"""Every example job runs as it is, on miniature data of the same form and for a moment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from PIL import Image
from pyproj import Transformer
from rasterio.transform import from_origin
from tests.data.formats.classed.digit_files import draw_idx
from tests.miniatures import (
    blobs,
    colours,
    draw_camvid_colours,
    draw_camvid_index,
    draw_cityscapes,
    draw_taco,
)

from outsize.commands.data.acquire import acquire
from outsize.commands.data.check import check
from outsize.commands.data.prepare import prepare
from outsize.commands.demo import _JOB, _class_tables
from outsize.commands.predict import predict
from outsize.commands.results.evaluate import evaluate
from outsize.commands.train import train
from outsize.data.synthetic import draw_scene, draw_streets, write_rain
from outsize.job import load_job, load_workflow
from outsize.planning.clusters import spread_over
from outsize.progress import Reporter
from outsize.tasks import FIRST
from outsize.workflow.stages import stages_of

_EXAMPLES = Path(__file__).parents[1] / "examples"
_WORKFLOWS = {"workflow-radar", "workflow-scenes"}
_SHORT = (
    "train.epochs=1",
    "train.samples_per_epoch=4",
    "train.batch=2",
    "train.tile_px=64",
    "train.workers=2",
)


def _dubai(root: Path) -> None:
    for tile in range(1, 7):
        for folder in ("images", "labels"):
            (root / f"tile{tile}" / folder).mkdir(parents=True)
        for part in range(1, 3):
            labels = blobs(90 + tile, 100, 5, 10 * tile + part)
            labels[0, 0] = 255
            picture = np.moveaxis(colours(labels, 3), 0, -1)
            Image.fromarray(picture).save(root / f"tile{tile}/images/image_part_00{part}.jpg", quality=95)
            Image.fromarray(labels).save(root / f"tile{tile}/labels/image_part_00{part}.png")


def _write(path: Path, pixels: NDArray[np.uint8], side_m: float, crs: str) -> None:
    place = from_origin(3628312.0, 39135.0, side_m, side_m)
    count, height, width = pixels.shape
    form = {"driver": "GTiff", "dtype": "uint8", "count": count, "height": height, "width": width}
    with rasterio.open(path, "w", **form, crs=crs, transform=place) as file:
        file.write(pixels)


def _rectangles(
    path: Path, labels: NDArray[np.uint8], side_m: float, crs: str, names: dict[int, str]
) -> None:
    """Write every 20 px cell of one class as a polygon in longitude and latitude."""
    to_degrees = Transformer.from_crs(crs, "EPSG:4326", always_xy=True)
    features = []
    for row in range(0, labels.shape[0], 10):
        for col in range(0, labels.shape[1], 10):
            value = int(labels[row, col])
            if value not in names:
                continue
            corners = [(row, col), (row, col + 10), (row + 10, col + 10), (row + 10, col), (row, col)]
            ring = [to_degrees.transform(3628312.0 + c * side_m, 39135.0 - r * side_m) for r, c in corners]
            geometry = {"type": "Polygon", "coordinates": [ring]}
            features.append({"type": "Feature", "properties": {"type": names[value]}, "geometry": geometry})
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))


def _buildings(root: Path) -> None:
    labels = blobs(660, 660, 2, 3)
    _write(root / "scene.tif", colours(labels, 3), 0.5, "EPSG:3857")
    _rectangles(root / "buildings.geojson", labels, 0.5, "EPSG:3857", {1: "building"})


def _sentinel2(root: Path) -> None:
    (root / "scenes").mkdir()
    names = {0: "water", 1: "forest", 2: "arable land", 3: "built-up"}
    for number in range(4):
        labels = blobs(160, 160, 4, number)
        pixels = colours(labels, 5)
        for band, name in zip(pixels, ("B02_10m", "B03_10m", "B04_10m", "B08_10m", "B11_20m"), strict=True):
            step = 2 if name.endswith("20m") else 1
            path = root / f"scenes/S{number}_{name}.tif"
            _write(path, band[None, ::step, ::step], 10.0 * step, "EPSG:32736")
        _rectangles(root / "scenes/landcover.geojson", labels, 10.0, "EPSG:32736", names)


def _satellite(root: Path) -> None:
    (root / "scenes").mkdir()
    for number in range(4):
        labels = blobs(300, 320, 4, number)
        _write(root / f"scenes/S{number}.tif", colours(labels, 4), 0.5, "EPSG:32736")
        with rasterio.open(root / f"scenes/S{number}.tif", "r+") as file:
            file.descriptions = ("blue", "green", "red", "nir")
        _write(root / f"scenes/S{number}_labels.tif", labels[None], 0.5, "EPSG:32736")


# a window that does not fit: it is learnt from in tiles
_TIGHT = ("model.levels=3", "model.width=4", "train.tile_px=256", "limits.host_memory=8MiB", "train.batch=1")


@pytest.mark.parametrize(
    ("name", "draw", "extra"),
    [
        pytest.param("dubai", _dubai, (), marks=pytest.mark.long),
        pytest.param(
            "buildings",
            _buildings,
            ("data.split.block_px=160", "data.split.gap_px=32"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            "sentinel2",
            _sentinel2,
            ("data.labels=landcover.geojson", "model.width=4"),
            marks=pytest.mark.long,
        ),
        ("satellite", _satellite, _TIGHT),
    ],
)
def test_example(name: str, draw: object, extra: tuple[str, ...], tmp_path: Path) -> None:
    assert callable(draw)
    draw(tmp_path)
    job, run, quiet = _EXAMPLES / f"{name}.toml", tmp_path / "run", Reporter("quiet")
    overrides = [*_SHORT, *extra, f"data.root={tmp_path.as_posix()}", f"run={run.as_posix()}"]
    check(job, overrides=overrides, reporter=quiet)
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=quiet)
    predict(run, [], out=None, overrides=(), device_name="cpu", reporter=quiet)
    scores = evaluate(run, split="test", reporter=quiet)
    assert 0 <= scores["mean_iou"] <= 1
    assert {"train", "val", "test"} <= set(json.loads((run / "split.json").read_text()))
    plan = json.loads((run / "plan.json").read_text())["train"]
    assert plan["exact"]
    assert (plan["tiles"] is not None) == (name == "satellite")


_SMALL = (
    "train.epochs=1",
    "train.samples_per_epoch=4",
    "train.batch=2",
    "train.tile_px=64",
    "train.workers=1",
)
# other labels of the same pictures: the job's own network has seen the first
_QUICK = ("model.name=unet", "model.levels=2", "model.width=4", "train.loss=cross_entropy")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "draw", "extra"),
    [
        ("cityscapes-gscnn", draw_cityscapes, ("model.width=8",)),
        ("cityscapes-gscnn", draw_cityscapes, (*_QUICK, "data.labels=gtCoarse")),
        ("cityscapes-erfnet", draw_cityscapes, ("model.width=8",)),
        ("camvid-deeplab", draw_camvid_colours, ("model.weights=none",)),
        ("camvid-deeplab-scratch", draw_camvid_index, ()),
        ("camvid-erfnet", draw_camvid_index, ("model.width=8",)),
        ("camvid-gscnn", draw_camvid_index, ("model.width=8",)),
        ("taco-gscnn", draw_taco, ("model.width=8",)),
        ("taco-gscnn", draw_taco, (*_QUICK, "data.class_map=taco-10")),
    ],
)
def test_example_of_a_dataset(name: str, draw: object, extra: tuple[str, ...], tmp_path: Path) -> None:
    """Two steps on the layout in miniature, and the published result beside the run's own."""
    assert callable(draw)
    (tmp_path / "data").mkdir()
    draw(tmp_path / "data")
    job, run, quiet = _EXAMPLES / f"{name}.toml", tmp_path / "run", Reporter("quiet")
    overrides = [*_SMALL, *extra, f"data.root={(tmp_path / 'data').as_posix()}", f"run={run.as_posix()}"]
    if name == "cityscapes-erfnet":
        phases = (
            '[{name="encoder", epochs=1, output="encoder", trainable="encoder"}, {name="whole", epochs=1}]'
        )
        overrides.append(f"train.phases={phases}")
    check(job, overrides=overrides, reporter=quiet)
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=quiet)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == (4 if name == "cityscapes-erfnet" else 2)
    split = json.loads((run / "split.json").read_text())
    scored = "test" if split["test"] else "val"
    images = [Path(each["image"]) for each in split[scored]]
    predict(run, images, out=None, overrides=(), device_name="cpu", reporter=quiet)
    scores = evaluate(run, split=scored, reporter=quiet)
    assert 0 <= scores["mean_iou"] <= 1
    cited = load_job(job).published
    assert (scores["published"] or {"scores": {}})["scores"] == cited.scores


def _nuclei(root: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    for number in range(6):
        ids = np.zeros((64, 80), np.uint16)
        for place in range(1, 9):
            row, col = int(rng.integers(54)), int(rng.integers(70))
            ids[row : row + 10, col : col + 9] = place
        picture = np.where(ids[..., None] > 0, 200, 40) + rng.integers(0, 20, (64, 80, 3))
        Image.fromarray(picture.astype(np.uint8)).save(root / f"images/{number}.jpg", quality=95)
        Image.fromarray(ids).save(root / f"labels/{number}.png")


def _nuts(root: Path) -> None:
    (root / "images").mkdir()
    names = ("date", "fig", "hazelnut")
    tree: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    tree["categories"] = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    for number in range(3):
        picture = np.full((64, 96, 3), 230, np.uint8)
        tree["images"].append({"id": number, "file_name": f"{number}.jpg", "height": 64, "width": 96})
        for place, (row, col) in enumerate(((4, 6), (20, 40), (36, 66)), start=1):
            picture[row : row + 20, col : col + 20, place - 1] = 60
            ring = [col, row, col + 20, row, col + 20, row + 20, col, row + 20]
            about = {"id": 10 * number + place, "image_id": number, "category_id": place, "iscrowd": 0}
            tree["annotations"].append(
                about | {"segmentation": [ring], "bbox": [col, row, 20, 20], "area": 400}
            )
        Image.fromarray(picture).save(root / f"images/{number}.jpg", quality=95)
    (root / "trainval.json").write_text(json.dumps(tree))


_TINY = ("model.backbone=resnet18", "model.width=8", "model.head_width=8", "model.rois_per_image=8")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "draw", "extra"),
    [
        ("nuclei", _nuclei, ("data.split.val=0.2",)),
        ("nuts", _nuts, ()),
        ("buildings", _buildings, ("data.split.block_px=330", "data.split.test=0.25", "model.overlap_px=64")),
    ],
)
def test_example_of_objects(name: str, draw: object, extra: tuple[str, ...], tmp_path: Path) -> None:
    """Two steps, and objects found in whatever is held out, or else in all there is."""
    assert callable(draw)
    (tmp_path / "data").mkdir()
    draw(tmp_path / "data")
    job, run, quiet = _EXAMPLES / f"{name}-maskrcnn.toml", tmp_path / "run", Reporter("quiet")
    root = (tmp_path / "data").as_posix()
    overrides = [*_SMALL, *_TINY, *extra, f"data.root={root}", f"run={run.as_posix()}"]
    overrides += ["model.least_proposals=50", "model.least_detections=10", "model.detections_per_mpx=20"]
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=quiet)
    images = sorted((tmp_path / "data/images").glob("*.jpg")) if name == "nuts" else []
    predict(run, images, out=None, overrides=(), device_name="cpu", reporter=quiet)
    for split in {"nuclei": ("test",), "nuts": ("train",), "buildings": ("train", "test")}[name]:
        scores = evaluate(run, split=split, reporter=quiet)
        assert 0 <= scores["mask"]["ap50"] <= 1
        assert 0 <= scores["map"]["f1"] <= 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["kitti-fastbox", "kitti-fastbox-scratch"])
def test_example_of_boxes(name: str, tmp_path: Path) -> None:
    """Two steps on drawn streets, and boxes of what is held out."""
    draw_streets(tmp_path / "data/training", 6, seed=0, size=(64, 212))
    job, run, quiet = _EXAMPLES / f"{name}.toml", tmp_path / "run", Reporter("quiet")
    overrides = [*_SMALL, "model.encoder=resnet18", "model.weights=none", "data.split.test=0.2"]
    overrides += [f"data.root={(tmp_path / 'data').as_posix()}", f"run={run.as_posix()}"]
    check(job, overrides=overrides, reporter=quiet)
    train(job, overrides=overrides, device_name="cpu", mode="new", reporter=quiet)
    predict(run, [], out=None, overrides=(), device_name="cpu", reporter=quiet)
    scores = evaluate(run, split="test", reporter=quiet)
    assert set(scores["kitti"]["Car"]["height"]["ap_41"]) == {"easy", "moderate", "hard"}


def test_example_of_digits(tmp_path: Path) -> None:
    draw_idx(tmp_path, side=28)
    run, quiet = tmp_path / "run", Reporter("quiet")
    overrides = [
        "train.epochs=1",
        "train.batch=8",
        f"data.root={tmp_path.as_posix()}",
        f"run={run.as_posix()}",
    ]
    check(_EXAMPLES / "digits.toml", overrides=overrides, reporter=quiet)
    train(_EXAMPLES / "digits.toml", overrides=overrides, device_name="cpu", mode="new", reporter=quiet)
    predict(run, [], out=None, overrides=(), device_name="cpu", reporter=quiet)
    assert evaluate(run, split="test", reporter=quiet)["num_pictures"] == 10


@pytest.mark.long
def test_example_of_frames(tmp_path: Path) -> None:
    write_rain(tmp_path / "data", 20, 48, num_cells=12)
    run, quiet = tmp_path / "run", Reporter("quiet")
    overrides = [
        *_SMALL,
        "train.tile_px=32",
        "model.width=4",
        "data.frames.num_in=3",
        "data.frames.num_out=2",
    ]
    overrides += [f"data.root={(tmp_path / 'data').as_posix()}", f"run={run.as_posix()}"]
    train(
        _EXAMPLES / "radar-nowcast.toml", overrides=overrides, device_name="cpu", mode="new", reporter=quiet
    )
    predict(run, [], out=None, overrides=(), device_name="cpu", reporter=quiet)
    means = evaluate(run, split="test", reporter=quiet)["means"]
    assert means["model"]["csi"][0] > means["persistence"]["csi"][0]


def test_example_workflow_of_frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From files to frames that the job reads; what comes after is the job's own example."""
    (tmp_path / "examples").mkdir()
    for name in ("workflow-radar", "radar-nowcast"):
        shutil.copy(_EXAMPLES / f"{name}.toml", tmp_path / "examples")
    write_rain(tmp_path / "data" / "archive", 6, 32, num_cells=4)
    monkeypatch.chdir(tmp_path)
    path = Path("examples/workflow-radar.toml")
    workflow, quiet = load_workflow(path), Reporter("quiet")
    stages = stages_of(path, workflow)
    assert [each.verb for each in stages] == ["acquire", "prepare", "train", "predict", "evaluate", "report"]
    job = Path("examples/radar-nowcast.toml")
    acquire(str(job), to=None, changes={}, overrides=workflow.set, reporter=quiet)
    prepare(job, overrides=workflow.set, changes={"workers": 1}, reporter=quiet)
    assert len(list(Path("data/radar").glob("*.tif"))) == 6
    assert [each.resolve() for each in stages[2].inputs] == [tmp_path / "data" / "radar"]


def test_example_workflow_of_the_demo_s_scenes(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    path = Path(shutil.copy(_EXAMPLES / "workflow-scenes.toml", tmp_path / "examples"))
    demo = tmp_path / "runs" / "demo"
    demo.mkdir(parents=True)
    text = _JOB.format(run=demo.as_posix(), task=FIRST, classes=_class_tables())
    (demo / "demo.toml").write_text(text)
    for name in ("train-1", "val-3", "test-4"):
        draw_scene(demo / "data", name, 32, 32, seed=1, vectors=False)
    workflow = load_workflow(path)
    job = load_job(demo / "demo.toml", workflow.set)
    assert [each.verb for each in stages_of(path, workflow)][:2] == ["prepare", "train"]
    prepare(demo / "demo.toml", overrides=workflow.set, changes={"workers": 1}, reporter=Reporter("quiet"))
    made = {path.as_posix() for path in (demo / "prepared" / "data").glob("*[0-9].tif")}
    assert made == {
        (demo / "prepared" / "data" / f"{name}.tif").as_posix() for name in ("train-1", "val-3", "test-4")
    }
    assert job.data.train == (f"{demo.resolve().as_posix()}/prepared/data/train-*.tif",)


def test_what_examples_cite_has_the_names_of_scores() -> None:
    paths = [path for path in _EXAMPLES.glob("*.toml") if path.stem not in _WORKFLOWS]
    assert any(load_job(path).published.scores for path in paths)
    for path in paths:
        job = load_job(path)
        names = {each.name for each in job.data.classes}
        assert set(job.published.classes) <= names
        assert set(job.published.scores) <= {
            *("mean_iou", "weighted_iou", "pixel_accuracy", "mean_accuracy", "mean_f1", "mean_bf")
        }
        assert {key for row in job.published.classes.values() for key in row} <= {
            "iou",
            "accuracy",
            "bf",
            "f1",
        }


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("satellite-summit", ("summit", 1200, "infiniband-edr-2")),
        pytest.param("satellite-2g", ("a100-80", 8, "nvlink3"), marks=pytest.mark.long),
    ],
)
def test_example_for_a_cluster(name: str, asked: tuple[str, int, str], tmp_path: Path) -> None:
    _satellite(tmp_path)
    small = ("train.tile_px=512", "model.width=4", "model.levels=3", f"data.root={tmp_path.as_posix()}")
    job = load_job(_EXAMPLES / f"{name}.toml", (*small, f"run={(tmp_path / 'run').as_posix()}"))
    gpu, num_gpus, link = asked
    best = spread_over(job, gpu, num_gpus, link, Reporter("quiet"))[0]
    assert best.found.num_replicas * best.found.num_stages == num_gpus
    assert 0 < best.efficiency <= 1


def test_every_example_is_tried() -> None:
    names = {"dubai", "buildings", "sentinel2", "satellite", "satellite-summit", "satellite-2g"}
    names |= {"nuclei-maskrcnn", "nuts-maskrcnn", "buildings-maskrcnn"}
    names |= {"cityscapes-gscnn", "cityscapes-erfnet", "camvid-deeplab", "taco-gscnn"}
    names |= {"kitti-fastbox", "kitti-fastbox-scratch"}
    names |= {"camvid-deeplab-scratch", "camvid-erfnet", "camvid-gscnn", "digits", "radar-nowcast"}
    assert {path.stem for path in _EXAMPLES.glob("*.toml")} == names | _WORKFLOWS
