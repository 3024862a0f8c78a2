"""Data of one's own that is wrong in one way is refused in one line; a corrupt picture among many is set aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from PIL import Image
from tests.commands.tiny_jobs import job_tail

TAIL = job_tail(ground=0, house=1) + "samples_per_epoch = 4\n"
PICTURES = """
run = "{folder}/run"
[data]
format = "folders"
images = ["images/*.png"]
labels = "../masks/{{stem}}.png"
max_bad_share = 0.1
"""
SCENES = """
run = "{folder}/run"
[data]
train = ["train.tif"]
val = ["val.tif"]
test = ["test.tif"]
labels = "{{stem}}.gpkg"
attribute = "kind"
outside = "ground"
"""
NUM_PICTURES = 12


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A job on twelve pictures with masks."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for number in range(NUM_PICTURES):
        mask = np.kron(rng.integers(0, 2, (5, 6)), np.ones((8, 8))).astype(np.uint8)
        image = rng.integers(0, 90, (*mask.shape, 3)) + 120 * mask[..., None]
        Image.fromarray(image.astype(np.uint8)).save(tmp_path / f"images/{number:02}.png")
        Image.fromarray(mask).save(tmp_path / f"masks/{number:02}.png")
    (tmp_path / "job.toml").write_text(PICTURES.format(folder=tmp_path) + TAIL)
    return tmp_path / "job.toml"


def _polygon(path: Path, col: int = 10, kind: str = "house") -> None:
    """Write one square of 24 px that begins at a column."""
    left, top = 5e5 + 2 * col, 5e6 - 20
    wkb = shapely.to_wkb(np.array([shapely.box(left, top - 48, left + 48, top)]))
    column = [np.array([kind], object)]
    path.unlink(missing_ok=True)
    pyogrio.raw.write(path, wkb, column, ["kind"], geometry_type="Polygon", crs="EPSG:32632")


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """A job on scenes with polygons."""
    grid = {"crs": "EPSG:32632", "transform": rasterio.Affine(2, 0, 5e5, 0, -2, 5e6)}
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        pixels = rng.integers(1, 200, (2, 64, 80)).astype(np.uint8)
        form = {"driver": "GTiff", "dtype": "uint8", "count": 2, "height": 64, "width": 80}
        with rasterio.open(tmp_path / f"{split}.tif", "w", **form, **grid) as file:
            file.write(pixels)
        _polygon(tmp_path / f"{split}.gpkg")
    (tmp_path / "job.toml").write_text(SCENES.format(folder=tmp_path) + TAIL)
    return tmp_path / "job.toml"


def _replace(job: Path, old: str, new: str) -> None:
    text = job.read_text()
    assert old in text
    job.write_text(text.replace(old, new))


def _other_value(job: Path) -> None:
    mask = np.zeros((40, 48), np.uint8)
    mask[11, 13] = 77
    Image.fromarray(mask).save(job.parent / "masks/05.png")


def _other_size(job: Path) -> None:
    Image.fromarray(np.zeros((40, 47), np.uint8)).save(job.parent / "masks/05.png")


def _lava(job: Path) -> None:
    _replace(job, "[model]", '[[data.classes]]\nname = "lava"\nvalue = 9\n[model]')


def _rasters_elsewhere(job: Path) -> None:
    """Label with rasters, of which one lies on another hillside."""
    keys = 'labels = "{stem}.gpkg"\nattribute = "kind"\noutside = "ground"\n'
    _replace(job, keys, 'labels = "{stem}_labels.tif"\n')
    form = {"driver": "GTiff", "dtype": "uint8", "count": 1, "height": 64, "width": 80}
    for split in ("train", "val", "test"):
        grid = rasterio.Affine(2, 0, 5e5 + 9000 * (split == "val"), 0, -2, 5e6)
        with rasterio.open(
            job.parent / f"{split}_labels.tif", "w", crs="EPSG:32632", transform=grid, **form
        ) as file:
            file.write(np.eye(64, 80, dtype=np.uint8), 1)


BAD_PICTURES = {
    "outside the classes": (_other_value, ("masks/05.png", "77 at row 11, column 13", "[0, 1]")),
    "another size": (_other_size, ("masks/05.png", "40 x 47", "40 x 48")),
    "empty class": (_lava, ("class 'lava' is empty", "train")),
}
BAD_SCENES = {
    "labels that miss": (
        lambda job: _polygon(job.parent / "val.gpkg", col=4000),
        ("val.gpkg", "miss the scene", "val.tif", "no polygon on it"),
    ),
    "rasters that miss": (
        _rasters_elsewhere,
        ("val_labels.tif", "miss the scene", "val.tif", "4,500 px away"),
    ),
    "no such attribute": (
        lambda job: _replace(job, '"kind"', '"knid"'),
        ("train.gpkg", "'knid'", "'kind'"),
    ),
    "value in no class": (
        lambda job: _polygon(job.parent / "test.gpkg", kind="hut"),
        ("test.gpkg", "'hut' in 1 polygons", "'house'"),
    ),
    "empty class": (_lava, ("class 'lava' is empty", "train")),
}


@pytest.mark.parametrize("verb", [pytest.param("check", marks=pytest.mark.long), "train"])
@pytest.mark.parametrize(("spoil", "found"), BAD_PICTURES.values(), ids=BAD_PICTURES)
def test_pictures_are_refused(
    run: Callable, pictures: Path, verb: str, spoil: Callable, found: tuple[str, ...]
) -> None:
    spoil(pictures)
    run(verb, pictures).refused(*found)
    if verb != "check":  # which leaves data.json to look at
        assert not (pictures.parent / "run").exists()


@pytest.mark.parametrize("verb", ["check", "train"])
@pytest.mark.parametrize(("spoil", "found"), BAD_SCENES.values(), ids=BAD_SCENES)
def test_scenes_are_refused(
    run: Callable, scenes: Path, verb: str, spoil: Callable, found: tuple[str, ...]
) -> None:
    spoil(scenes)
    run(verb, scenes).refused(*found)
    if verb != "check":  # labels of good scenes stay, for the next try
        assert {path.name for path in (scenes.parent / "run").glob("*")} <= {"labels", ".outsize"}


def _no_picture(path: Path) -> None:
    path.write_bytes(b"words" * 100)


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("folder", ["images", "masks"])
@pytest.mark.parametrize("spoil", [_no_picture, _half], ids=["no picture", "truncated"])
def test_one_corrupt_picture_is_named_and_set_aside(
    run: Callable, pictures: Path, spoil: Callable, folder: str
) -> None:
    home = pictures.parent
    spoil(home / folder / "07.png")
    whole = spoil is _half  # to the end: looking first refuses what is no picture in the same place
    for verb in ("check", "train") if whole else ("check",):
        done = run(verb, pictures)
        assert done.code == 0, done.err
        said = [line for line in map(json.loads, done.out.splitlines()) if line["event"] == "set aside"]
        assert any("07.png" in line["text"] for line in said), done.out
        split = json.loads((home / "run" / "split.json").read_text())
        (bad,) = split["set_aside"]
        assert Path(bad["file"]) == home / "images/07.png"
        assert f"{folder}/07.png" in bad["reason"]
        used = [Path(each["image"]).name for name in ("train", "val", "test") for each in split[name]]
        assert sorted(used) == [f"{number:02}.png" for number in range(NUM_PICTURES) if number != 7]
    for verb in ("predict", "evaluate") if whole else ():
        done = run(verb, home / "run")
        assert done.code == 0, done.err


@pytest.mark.parametrize("spoil", [_no_picture, _half], ids=["no picture", "truncated"])
def test_more_corrupt_pictures_than_the_job_allows(run: Callable, pictures: Path, spoil: Callable) -> None:
    for name in ("03", "07"):  # 2 of 12 are more than 10 %
        spoil(pictures.parent / f"images/{name}.png")
    for verb in ("check", "train"):
        run(verb, pictures).refused("2 of 12 images", "03.png", "07.png", "10.0%", "data.max_bad_share")
    done = run("train", pictures, "--set", "data.max_bad_share=0.2")
    assert done.code == 0, done.err


@pytest.mark.parametrize("spoil", [_no_picture, _half], ids=["no picture", "truncated"])
@pytest.mark.parametrize("verb", ["check", "train"])
def test_nothing_but_corrupt_pictures(run: Callable, pictures: Path, spoil: Callable, verb: str) -> None:
    for path in (pictures.parent / "images").iterdir():
        spoil(path)
    run(verb, pictures, "--set", "data.max_bad_share=0.99").refused("12 of 12 images", "00.png")


SHARES = (
    'images = ["*.tif"]\n[data.split]\nby = "blocks"\nblock_px = 32\ngap_px = 130\nval = 0\ntest = 0.01\n'
)


@pytest.mark.parametrize("verb", ["check", "train"])
def test_a_split_that_leaves_nothing_to_test(run: Callable, scenes: Path, verb: str) -> None:
    lists = 'train = ["train.tif"]\nval = ["val.tif"]\ntest = ["test.tif"]\n'
    _replace(scenes, lists, "")
    _replace(scenes, 'outside = "ground"\n', 'outside = "ground"\n' + SHARES)
    # the one block to test is smaller than the distance it must keep
    refusal = run(verb, scenes).refused("nothing to test", "12 blocks of 32 px, 130 px apart", "gap_px")
    assert str(scenes) in refusal
    by_scene = ("--set", 'data.split.by="scene"', "--set", 'data.images=["train.tif"]')
    run(verb, scenes, *by_scene).refused("nothing to train on", "1 images", '"blocks"')


def test_test_pictures_that_are_all_corrupt(run: Callable, pictures: Path) -> None:
    assert run("check", pictures).code == 0
    split = json.loads((pictures.parent / "run" / "split.json").read_text())
    for spoil in (_half, _no_picture):
        for each in split["test"]:
            spoil(Path(each["image"]))
        for verb in ("check", "train"):
            refusal = run(verb, pictures, "--set", "data.max_bad_share=0.5").refused(
                "nothing is left for test"
            )
            assert all(each["image"] in refusal for each in split["test"])
            assert "set another data.split or seed" in refusal


def test_a_truncated_picture_is_said_once(run: Callable, pictures: Path) -> None:
    _half(pictures.parent / "images/07.png")
    done = run("check", pictures, "--set", "data.max_bad_share=0")
    done.refused("images/07.png cannot be decoded")
    said = [line["text"] for line in map(json.loads, done.out.splitlines()) if "text" in line]
    assert [text for text in said if "07.png" in text] == []
    _half(pictures.parent / "images/08.png")
    done = run("check", pictures, "--set", "data.max_bad_share=0")
    done.refused("2 of 12 images", "07.png", "08.png")
    said = [line["text"] for line in map(json.loads, done.out.splitlines()) if "text" in line]
    assert [text.split()[3].rpartition("/")[2] for text in said if "cannot be read" in text] == [
        "07.png",
        "08.png",
    ]


def test_a_job_that_holds_nothing_back_is_trained_and_not_scored(run: Callable, pictures: Path) -> None:
    done = run("train", pictures, "--set", "data.split.test=0")
    assert done.code == 0, done.err
    for verb in ("predict", "evaluate"):
        run(verb, pictures.parent / "run").refused("nothing in split test", "split.json")
