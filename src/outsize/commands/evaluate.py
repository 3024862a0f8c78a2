"""`outsize evaluate RUN`: a run's maps against the labels of its scenes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import JobError, RunError, explain
from outsize.job import Job, load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, read_json, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outsize.data.scenes import LabelledScene
    from outsize.metrics.confusion import Scores

SPLITS = ("train", "val", "test")


def evaluate(run_path: Path, *, split: str, reporter: Reporter) -> dict[str, Any]:
    """Score the maps of one split and leave scores.json and a picture; returns the split's scores."""
    import numpy as np

    from outsize.data.scenes import label_table, open_scenes
    from outsize.infer.evaluate import compare_map, num_windows
    from outsize.metrics.confusion import Scores

    run = open_run(run_path)
    job = load_job(run.job)
    if split not in SPLITS:
        need = f"one of {', '.join(SPLITS)}"
        raise JobError(explain(f"no such split of {run.job}", repr(split), need, "choose with --split"))
    patterns = getattr(job.data, split)
    if not patterns:
        need = f"scenes in data.{split}"
        raise JobError(
            explain(f"nothing to evaluate in {run.job}", f"no data.{split}", need, "choose another --split")
        )
    scenes = open_scenes(patterns, job.data.labels, allow_references=job.data.allow_references)
    table = label_table([each.value for each in job.data.classes], job.data.ignore_value)
    names = tuple(each.name for each in job.data.classes)
    maps = [_map_of(run, scene) for scene in scenes]
    total, per_scene = np.zeros((len(names), len(names)), np.int64), {}
    num = sum(num_windows(scene.image.height, scene.image.width) for scene in scenes)
    with reporter.bar("evaluate", num, "window") as bar:
        for scene, map_path in zip(scenes, maps, strict=True):
            counts = compare_map(map_path, scene, table, len(names), bar)
            per_scene[scene.image.path.name] = Scores(names, counts).as_dict()["mean_iou"]
            total += counts
    scores = Scores(names, total)
    result = {**scores.as_dict(), "scenes": per_scene}
    known = read_json(run.scores, "evaluate") if run.scores.exists() else {}
    write_json(run.scores, {**known, split: result})
    _draw(run, job, scenes[0], maps[0], table)
    _say(scores, split, run, reporter)
    return result


def _map_of(run: RunFolder, scene: LabelledScene) -> Path:
    path = run.predictions / f"{scene.image.path.stem}.tif"
    if not path.is_file():
        remedy = f"run `outsize predict {run.path} {scene.image.path}` first"
        raise RunError(
            explain(f"no map of {scene.image.path.name}", f"no {path}", "a predicted scene", remedy)
        )
    return path


def _draw(run: RunFolder, job: Job, scene: LabelledScene, map_path: Path, table: NDArray[np.uint8]) -> None:
    from outsize.data.scenes import read_labels
    from outsize.raster.read import SceneReader, describe
    from outsize.tasks.draw import draw_triptych, stretch
    from outsize.tiles.window import middle_window

    window = middle_window(scene.image.height, scene.image.width, 1024)
    with (
        SceneReader(scene.image) as images,
        SceneReader(scene.labels) as labels,
        SceneReader(describe(map_path)) as maps,
    ):
        raster = images.read(window)
        truth = read_labels(labels, window, table)
        predicted = read_labels(maps, window, table)
    place = f"rows {window.row}-{window.row_end}, columns {window.col}-{window.col_end}"
    draw_triptych(
        run.picture,
        stretch(raster.pixels, raster.valid, job.data.bands or scene.image.band_names),
        truth,
        predicted,
        [(each.name, each.colour) for each in job.data.classes],
        title=f"{scene.image.path.name}, {place}",
    )


def _say(scores: Scores, split: str, run: RunFolder, reporter: Reporter) -> None:
    table = scores.as_dict()
    lines = [f"{'class':<16}{'IoU':>8}{'accuracy':>10}{'F1':>8}{'pixels':>14}"]
    for name, row in table["classes"].items():
        figures = (f"{row[key]:.4f}" if row[key] is not None else "-" for key in ("iou", "accuracy", "f1"))
        iou, accuracy, f1 = figures
        lines.append(f"{name:<16}{iou:>8}{accuracy:>10}{f1:>8}{row['num_px']:>14,}")
    lines.append(
        f"{split}: mean IoU {scores.mean_iou:.4f}, pixel accuracy {table['pixel_accuracy']:.4f}: {run.scores}"
    )
    reporter.say("scores", "\n".join(lines), split=split, **table)
