"""What is spoilt: small jobs, runs and data of every kind, and the command line that reads them."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import rasterio
import shapely
import tomli_w
from PIL import Image
from tests.fuzz import mutate

NAMES = ("water", "field", "wood")
_CLASSES = "".join(
    f'[[data.classes]]\nname = "{name}"\nvalue = {value}\n' for value, name in enumerate(NAMES)
)
_JOB = """
task = "{task}"
run = "run"
[data]
{data}
{classes}
[model]
name = "{model}"
{options}
[train]
epochs = 1
tile_px = 32
batch = 2
samples_per_epoch = 2
[limits]
host_memory = "1GiB"
tile_px = 32
"""


def job_text(data: str, *, task: str = "segment", classes: str = _CLASSES) -> str:
    """Return the job of a subject."""
    model, options = ("unet", "levels = 2\nwidth = 4") if task == "segment" else ("maskrcnn", "")
    return _JOB.format(task=task, data=data, classes=classes, model=model, options=options)


Case = list[list[str]]  # command lines, in their order


@dataclass(frozen=True)
class Subject:
    """`lay` writes sound files into a folder, `spoil` harms them and returns the command lines to run there."""

    lay: Callable[[Path], None]
    spoil: Callable[[Path, random.Random], Case]


# --- sound files ---------------------------------------------------------------------------------------------------


def draw_scene(path: Path, seed: int, *, dtype: str = "uint8", bands: int = 2, **options: Any) -> None:
    """A scene of 64 x 64 px in three parts, with labels beside it."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.repeat(rng.permutation(np.arange(16) % 3).reshape(4, 4), 16, 0), 16, 1).astype(
        np.uint8
    )
    pixels = (labels[None] * 60 + rng.integers(1, 40, (bands, 64, 64))).astype(dtype)
    if options.get("ALPHA"):
        pixels[-1] = 255
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(2, 0, 5e5, 0, -2, 5e6)}
    shape = {"height": 64, "width": 64}
    with rasterio.open(
        path, "w", driver="GTiff", dtype=dtype, count=bands, **shape, **place, **options
    ) as file:
        file.write(pixels)
    beside = path.with_name(f"{path.stem}_labels.tif")
    with rasterio.open(beside, "w", driver="GTiff", dtype="uint8", count=1, **shape, **place) as file:
        file.write(labels, 1)


def draw_scenes(folder: Path, **options: Any) -> None:
    """A scene for each split."""
    for seed, split in enumerate(("train", "val", "test")):
        draw_scene(folder / f"{split}.tif", seed, **options)


_SPLITS = 'train = ["train*.tif"]\nval = ["val*.tif"]\ntest = ["test*.tif"]\nlabels = "{stem}_labels.tif"'


def lay_job(folder: Path) -> None:
    """A job with rasters."""
    draw_scenes(folder)
    (folder / "job.toml").write_text(job_text(_SPLITS))


_RASTERS: tuple[dict[str, Any], ...] = (
    {"tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate"},
    {"compress": "lzw", "dtype": "uint16", "interleave": "pixel"},
    {"dtype": "float32", "nodata": -9999, "compress": "deflate", "predictor": 3},
    {"BIGTIFF": "YES", "nodata": 0},
    {
        "bands": 3,
        "compress": "jpeg",
        "photometric": "YCBCR",
        "tiled": True,
        "blockxsize": 32,
        "blockysize": 32,
    },
    {"bands": 4, "photometric": "RGB", "ALPHA": "YES", "compress": "packbits"},
)


def lay_raster(folder: Path) -> None:
    """A folder for each kind of TIFF, one of pictures and one of JPEG 2000."""
    for number, options in enumerate(_RASTERS):
        (folder / f"{number}").mkdir()
        draw_scenes(folder / f"{number}", **options)
        (folder / f"{number}" / "job.toml").write_text(job_text(_SPLITS))
    for suffix, form in ((".png", "PNG"), (".jpg", "JPEG")):
        there = folder / form
        there.mkdir()
        for seed, split in enumerate(("train", "val", "test")):
            rng = np.random.default_rng(seed)
            labels = rng.integers(0, 3, (8, 8)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
            exif = Image.Exif()
            exif[274] = seed + 1
            Image.fromarray(
                labels[..., None] * np.uint8(50) + rng.integers(1, 20, (64, 64, 3), np.uint8)
            ).save(there / f"{split}{suffix}", **({"exif": exif} if form == "JPEG" else {}))
            Image.fromarray(labels).save(there / f"{split}_labels.png")
            (there / f"{split}.wld").write_text("2\n0\n0\n-2\n500001\n4999999\n")
            (there / f"{split}.prj").write_text(rasterio.crs.CRS.from_epsg(32632).to_wkt())
        text = _SPLITS.replace(".tif", suffix).replace("{stem}_labels" + suffix, "{stem}_labels.png")
        (there / "job.toml").write_text(job_text(f'format = "folders"\n{text}'))
    (folder / "JP2").mkdir()
    draw_scenes(folder / "JP2", bands=3)
    for split in ("train", "val", "test"):
        with rasterio.open(folder / "JP2" / f"{split}.tif") as file:
            profile = {
                **file.profile,
                "driver": "JP2OpenJPEG",
                "tiled": False,
                "QUALITY": "100",
                "REVERSIBLE": "YES",
            }
            profile = {
                key: value
                for key, value in profile.items()
                if key not in ("interleave", "blockxsize", "blockysize")
            }
            with rasterio.open(folder / "JP2" / f"{split}.jp2", "w", **profile) as out:
                out.write(file.read())
        (folder / "JP2" / f"{split}.tif").unlink()
    (folder / "JP2" / "job.toml").write_text(job_text(_SPLITS.replace('*.tif"]', '*.jp2"]')))


_VECTORS = {"gpkg": "GPKG", "geojson": "GeoJSON", "fgb": "FlatGeobuf", "shp": "ESRI Shapefile"}


def polygons(seed: int) -> tuple[Any, Any]:
    """Squares that cover a scene, and their kinds."""
    numbers = np.random.default_rng(seed).permutation(np.arange(16) % 3)
    boxes = [
        shapely.box(
            5e5 + 32 * (i % 4), 5e6 - 32 * (i // 4) - 32, 5e5 + 32 * (i % 4) + 32, 5e6 - 32 * (i // 4)
        )
        for i in range(16)
    ]
    return np.array(boxes, object), np.array([NAMES[i] for i in numbers], object)


def write_vector(path: Path, shapes: Any, kinds: Any, *, kind: str = "Polygon") -> None:
    """Write shapes of our grid, GeoJSON too."""
    form = {"driver": _VECTORS[path.suffix[1:]], "geometry_type": kind, "crs": "EPSG:32632"}
    wkb = np.array([None if each is None else shapely.to_wkb(each) for each in shapes], object)
    pyogrio.raw.write(path, wkb, [kinds, np.arange(len(kinds)) / 7], ["kind", "height"], **form)


def lay_vector(folder: Path) -> None:
    """A folder for each kind of vector file."""
    for suffix in _VECTORS:
        there = folder / suffix
        there.mkdir()
        draw_scenes(there)
        for seed, split in enumerate(("train", "val", "test")):
            (there / f"{split}_labels.tif").unlink()
            write_vector(there / f"{split}.{suffix}", *polygons(seed))
        data = _SPLITS.replace("_labels.tif", f".{suffix}") + '\nattribute = "kind"'
        (there / "job.toml").write_text(job_text(data))


def _packed(*counts: int) -> str:
    """Write runs as COCO packs them, five bits in a letter; of up to three, for the fourth would be a difference."""
    letters = []
    for count in counts:
        left = count
        while True:
            code, left = left & 31, left >> 5
            goes_on = left != (-1 if code & 16 else 0)
            letters.append(chr(48 + code + 32 * goes_on))
            if not goes_on:
                break
    return "".join(letters)


def coco_tree() -> dict[str, Any]:
    """Eight pictures with two objects each: an outline, packed runs, plain runs, a box."""
    images, rows = [], []
    for number in range(8):
        images.append({"id": number, "file_name": f"{number}.png", "height": 64, "width": 64})
        outlines: list[Any] = [[[4, 4, 40, 4, 40, 40, 4, 40]], {"size": [64, 64], "counts": [100, 600, 3396]}]
        outlines.append({"size": [64, 64], "counts": _packed(100, 600, 3396)})
        for index, outline in enumerate(outlines[number % 3 :] or outlines):
            about = {
                "image_id": number,
                "category_id": index % 3,
                "bbox": [4, 4, 36, 36],
                "iscrowd": 0,
                "area": 9.0,
            }
            rows.append({"id": len(rows), "segmentation": outline, **about})
    categories = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
    return {"images": images, "annotations": rows, "categories": categories}


def lay_coco(folder: Path) -> None:
    """Pictures and a COCO file, for classes and for objects."""
    (folder / "images").mkdir()
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
    (folder / "a.json").write_text(json.dumps(coco_tree()))
    data = 'format = "coco"\nroot = "."\nlabels = "a.json"'
    outside = '[[data.classes]]\nname = "rest"\nvalue = 9\n'
    (folder / "job.toml").write_text(job_text(f'{data}\noutside = "rest"', classes=_CLASSES + outside))
    (folder / "objects.toml").write_text(job_text(data, task="instances"))


def lay_run(folder: Path) -> None:
    """A run that was trained for a moment, with its maps and scores."""
    from outsize.commands.predict import predict
    from outsize.commands.results.evaluate import evaluate
    from outsize.commands.train import train
    from outsize.progress import Reporter

    lay_job(folder)
    os.chdir(folder)  # the job names its run from there
    quiet = Reporter("quiet")
    train(folder / "job.toml", overrides=(), device_name="cpu", mode="new", reporter=quiet)
    predict(folder / "run", (), out=None, overrides=(), device_name="cpu", reporter=quiet)
    evaluate(folder / "run", split="test", reporter=quiet)


# --- how they are spoilt -------------------------------------------------------------------------------------------


def spoil_file(path: Path, rng: random.Random) -> None:
    """Spoil the bytes of a file; at times it is empty, gone, a folder or a pipe."""
    kind = rng.randrange(60)
    if kind > 3:
        path.write_bytes(mutate.bytes_of(rng, path.read_bytes()))
        return
    path.unlink()
    if kind == 0:
        path.touch()
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        os.mkfifo(path)


def _spoil_tree(path: Path, rng: random.Random) -> None:
    """Spoil values of a JSON or TOML file, or now and then its bytes."""
    text = path.read_text()
    if rng.random() < 0.15:
        spoil_file(path, rng)
    elif path.suffix == ".jsonl":
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutate.tree_of(rng, json.loads(lines[at])))
        path.write_text("\n".join(lines) + rng.choice(("", "\n", "\n\n")))
    elif path.suffix == ".toml":
        path.write_bytes(_as_toml(mutate.tree_of(rng, _toml(text))))
    else:
        path.write_text(json.dumps(mutate.tree_of(rng, json.loads(text))))


def _toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


def _as_toml(tree: Any) -> bytes:
    """Write what TOML can hold of a tree."""
    kept = _without_none(tree)
    try:
        return tomli_w.dumps(kept if isinstance(kept, dict) else {"a": kept}).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError):
        return b"task = "


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_without_none(value) for value in tree if value is not None]
    return tree


def _spoil_job(folder: Path, rng: random.Random) -> Case:
    path = folder / "job.toml"
    _spoil_tree(path, rng)
    # where it writes is for the user to say, and no other's file
    return [["check", "job.toml", "--set", "run=run"]]


def _renamed(folder: Path, rng: random.Random, stem: str) -> bool:
    if rng.random() > 0.06:
        return False
    name = os.fsdecode(rng.choice(mutate.ODD_NAMES))
    for path in list(folder.iterdir()):
        if path.name.startswith(stem):
            path.rename(folder / (stem + name + path.name[len(stem) :]))
    return True


def _spoil_raster(folder: Path, rng: random.Random) -> Case:
    there = rng.choice(sorted(folder.iterdir()))
    split = rng.choice(("train", "val", "test"))
    if not _renamed(there, rng, split) or rng.random() < 0.5:
        path = rng.choice([path for path in sorted(there.iterdir()) if path.suffix != ".toml"])
        if rng.random() < 0.1:
            texts = (b"<PAMDataset/>", b"", path.read_bytes())
            path = path.with_name(path.name + rng.choice((".aux.xml", ".ovr", ".msk")))
            path.write_bytes(rng.choice(texts))
        spoil_file(path, rng)
    return [["check", str(there / "job.toml"), "--set", "run=run"]]


def _odd_shapes(rng: random.Random, seed: int) -> tuple[Any, Any, str]:
    shapes, kinds = polygons(seed)
    odd = [
        None,
        shapely.Polygon(),
        shapely.Point(5e5, 5e6),
        shapely.LineString([(5e5, 5e6), (5e5 + 9, 5e6)]),
        shapely.Polygon([(5e5, 5e6), (np.nan, 5e6), (5e5, 5e6 - 9)]),
        shapely.Polygon([(5e5, 5e6), (np.inf, 5e6), (5e5, 5e6 - 9)]),
        shapely.Polygon([(5e5, 5e6), (1e300, 5e6), (5e5, -1e300)]),
        shapely.Polygon([(5e5, 5e6), (5e5 + 90, 5e6 - 90), (5e5 + 90, 5e6), (5e5, 5e6 - 90)]),
        shapely.Polygon([(5e5, 5e6)] * 4),
        shapely.GeometryCollection([shapes[0], shapely.Point(0, 0)]),
        shapely.MultiPolygon([shapes[0], shapes[0]]),
        shapely.force_3d(shapes[3], 1e300),
    ]
    for _ in range(rng.choice((1, 2, 9))):
        shapes[rng.randrange(len(shapes))] = rng.choice(odd)
        if rng.random() < 0.5:
            kinds[rng.randrange(len(kinds))] = rng.choice((None, *mutate.ODD_TEXTS))
    return shapes, kinds, rng.choice(("Polygon", "Unknown", "GeometryCollection"))


def _spoil_vector(folder: Path, rng: random.Random) -> Case:
    there = folder / rng.choice(sorted(_VECTORS))
    split = rng.choice(("train", "val", "test"))
    path = there / f"{split}.{there.name}"
    is_renamed = False
    if rng.random() < 0.15:
        shapes, kinds, kind = _odd_shapes(rng, 0)
        for each in there.glob(f"{split}.*"):
            if each.suffix != ".tif":
                each.unlink()
        try:
            write_vector(path, shapes, kinds, kind=kind)
        except (pyogrio.errors.DataLayerError, ValueError, TypeError):
            path.write_bytes(b"")
    elif there.name == "geojson" and rng.random() < 0.5:
        path.write_text(json.dumps(mutate.tree_of(rng, json.loads(path.read_text()))))
    else:
        is_renamed = _renamed(there, rng, split)
        if not is_renamed:
            parts = [each for each in sorted(there.glob(f"{split}.*")) if each.suffix != ".tif"]
            spoil_file(rng.choice(parts), rng)
    if rng.random() < 0.15 and not is_renamed:
        return [["predict", "run", str(there / "test.tif"), "--aoi", str(path), "--out", "run/out"]]
    return [["check", str(there / "job.toml"), "--set", "run=run"]]


def _spoil_coco(folder: Path, rng: random.Random) -> Case:
    path = folder / "a.json"
    if rng.random() < 0.8:
        tree = mutate.tree_of(rng, json.loads(path.read_text()))
        path.write_text(json.dumps(tree, ensure_ascii=rng.random() < 0.7), errors="surrogatepass")
    else:
        spoil_file(path, rng)
    return [["check", rng.choice(("job.toml", "objects.toml")), "--set", "run=run"]]


_RUN_FILES = (
    *("job.toml", "plan.json", "facts.json", "split.json", "data.json", "metrics.jsonl", "scores.json"),
    *("predictions/predict.json", "checkpoints/best.json"),
)
_VERBS = (
    *(["info", "run"], ["report", "run"], ["evaluate", "run"], ["predict", "run"]),
    *(["predict", "run", "test.tif", "--out", "run/out"], ["verify", "run"], ["evaluate", "run", "run2"]),
)


def _spoil_run(folder: Path, rng: random.Random) -> Case:
    path = folder / "run" / rng.choice([name for name in _RUN_FILES if (folder / "run" / name).is_file()])
    _spoil_tree(path, rng)
    verbs = [list(each) for each in _VERBS if each[-1] != "run2" and each[0] != "verify"]
    if rng.random() < 0.05:
        return [["verify", "run"]]
    return rng.sample(verbs, 2)


def _spoil_checkpoint(folder: Path, rng: random.Random) -> Case:
    resumes = rng.random() < 0.15
    path = folder / "run" / "checkpoints" / ("state.safetensors" if resumes else "best.safetensors")
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.6:
        tree = json.loads(data[8 : 8 + length])
        inner = "position" if resumes else "card"
        if rng.random() < 0.7:
            card = json.dumps(mutate.tree_of(rng, json.loads(tree["__metadata__"][inner])))
            tree["__metadata__"][inner] = card
        else:
            tree = mutate.tree_of(rng, tree)
        header = json.dumps(tree).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])
    else:
        spoil_file(path, rng)
    if resumes:
        return [["train", "job.toml", "--resume", "--set", "train.epochs=2"]]
    return [["predict", "run", "test.tif", "--out", "run/out"]]


SUBJECTS = {
    "job": Subject(lay_job, _spoil_job),
    "run": Subject(lay_run, _spoil_run),
    "checkpoint": Subject(lay_run, _spoil_checkpoint),
    "raster": Subject(lay_raster, _spoil_raster),
    "vector": Subject(lay_vector, _spoil_vector),
    "coco": Subject(lay_coco, _spoil_coco),
}
