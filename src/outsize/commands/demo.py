"""`outsize demo`: the main job from nothing: draw, check, plan, train, predict, evaluate, verify, report."""

from __future__ import annotations

import time
from pathlib import Path

from outsize.accounts import accounted
from outsize.commands import data, plan, predict, results, train
from outsize.errors import OutputError, explain, listed
from outsize.files.ownership import Consent, is_marked, mark, others_in
from outsize.progress import Reporter
from outsize.runs import RunFolder, refuse_foreign, working_in, write_text
from outsize.tasks import FIRST
from outsize.units import format_seconds

# name of the split, seed, side in pixels
_SCENES = (("train", 1, 1024), ("train", 2, 1024), ("val", 3, 512), ("test", 4, 1280))
_DATA, _JOB_NAME = "data", "demo.toml"

_JOB = """\
# The demo's job: small enough for two CPU cores, and a whole job all the same.
task = "{task}"
seed = 1
run = "{run}"

[data]
train = ["data/train-*.tif"]
val = ["data/val-*.tif"]
test = ["data/test-*.tif"]
bands = ["blue", "green", "red", "nir"]
{classes}
[model]
name = "unet"
levels = 4
width = 12
upsampling = "nearest"

[train]
epochs = 7
tile_px = 128
batch = 8
samples_per_epoch = 288
lr = 4e-3
schedule = "cosine"
warmup_steps = 10

[predict]
min_area_m2 = 4.0

[limits]
host_memory = "2GiB"
gpu_memory = "2GiB"

# what `outsize tune` may vary
[tune]
train.lr = {{ low = 1e-3, high = 1e-2, log = true }}
train.batch = [8, 16]
"""


def demo(out: Path, *, device_name: str, reporter: Reporter, overwrite: bool = False) -> None:
    """Fill a run folder with a whole job on synthetic scenes and say where to look.

    `overwrite`: also a folder with files of others in it, which stay but for those in the way.
    """
    run = RunFolder(out)
    another, more = "choose another --out", "add --overwrite"
    refuse_foreign(run, overwrite=overwrite, another=another, more=more)
    _refuse_other_data(run, overwrite)
    with working_in(run, "demo", Consent(overwrite), tell=lambda text: reporter.say("lock", text)):
        _fill(run, device_name, reporter)


def _refuse_other_data(run: RunFolder, overwrite: bool) -> None:
    """Refuse to draw scenes among those of somebody else."""
    folder = run.path / _DATA
    found = others_in(folder)
    drawn = tuple(f"{split}-{seed}" for split, seed, _ in _SCENES)
    # the folder of an earlier version has no mark
    is_old = (run.path / _JOB_NAME).is_file() and all(name.startswith(drawn) for name in found)
    if found and not overwrite and not is_marked(folder) and not is_old:
        need, remedy = "none, or the scenes of a demo", "choose another --out, or add --overwrite"
        raise OutputError(explain(f"the demo would draw scenes into {folder}", listed(found), need, remedy))


def _fill(run: RunFolder, device_name: str, reporter: Reporter) -> None:
    start_s, out = time.perf_counter(), run.path
    job_path = out / _JOB_NAME
    with accounted(run, "demo", reporter):
        tests = _draw_scenes(out / _DATA, reporter)
    write_text(job_path, _JOB.format(run=out.resolve().as_posix(), task=FIRST, classes=_class_tables()))
    data.check(job_path, overrides=(), reporter=reporter)
    plan.plan(job_path, overrides=(), device_name=device_name, reporter=reporter)
    train.train(job_path, overrides=(), device_name=device_name, mode="overwrite", reporter=reporter)
    predict.predict(out, tests, out=None, overrides=(), device_name=device_name, reporter=reporter)
    scores = results.evaluate(out, split="test", reporter=reporter)
    results.verify(out, overrides=(), device_name=device_name, reporter=reporter)
    page = results.report([out], out=None, reporter=reporter)
    name, taken = tests[0].stem, format_seconds(time.perf_counter() - start_s)
    lines = [
        f"done in {taken}, test mean IoU {scores['mean_iou']:.4f}. Look at:",
        f"  {run.picture}   input, truth and prediction side by side",
        f"  {run.predictions / (name + '.tif')}   the map, a Cloud-Optimized GeoTIFF",
        f"  {run.predictions / (name + '.gpkg')}   its polygons, for QGIS",
        f"  {run.scores}   the scores",
        f"  {page}   all of it on one page",
        f"  {run.plan}   what was decided, and why",
        f"  {job_path}   the job: copy it to begin your own",
    ]
    reporter.say("done", "\n".join(lines), mean_iou=scores["mean_iou"], run=str(out))


def _draw_scenes(folder: Path, reporter: Reporter) -> list[Path]:
    from outsize.data.synthetic import draw_scene
    from outsize.raster import disk

    disk.make_folder(folder)
    with disk.disk_errors(folder):
        mark(folder)
    tests = []
    with reporter.bar("draw scenes", sum(side for _, _, side in _SCENES), "row") as bar:
        for split, seed, side_px in _SCENES:
            path = draw_scene(folder, f"{split}-{seed}", side_px, side_px, seed, bar=bar)
            if split == "test":
                tests.append(path)
    return tests


def _class_tables() -> str:
    from outsize.data.synthetic import CLASSES

    lines = []
    for each in CLASSES:
        colour = "#{:02x}{:02x}{:02x}".format(*each.colour)
        lines.append(f'[[data.classes]]\nname = "{each.name}"\nvalue = {each.value}\ncolour = "{colour}"\n')
    return "\n" + "\n".join(lines)
