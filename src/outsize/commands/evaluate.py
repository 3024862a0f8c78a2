"""`outsize evaluate RUN`: a run's maps against the labels of its scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.evaluate_objects import evaluate_objects
from outsize.commands.score_lines import class_lines, figure, outline_lines, published_lines, scene_lines
from outsize.commands.scoring import Subject, files_of, open_split
from outsize.job import Job, load_job
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, output_errors, read_json, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outsize.infer.evaluate import Comparison, MapFiles


def evaluate(run_path: Path, *, split: str, reporter: Reporter, aoi: Path | None = None) -> dict[str, Any]:
    """Score the maps of one split and leave scores.json and pictures; returns the split's scores."""
    from outsize.data.scenes import label_table
    from outsize.tasks import TASKS

    run = open_run(run_path)
    job = load_job(run.job)
    if TASKS[job.task].decode is None:
        return evaluate_objects(run, job, split, aoi, reporter)
    subjects = open_split(run, job, split, aoi, reporter)
    files = files_of(run, [each.scene for each in subjects])
    table = label_table([each.value for each in job.data.classes], job.data.ignore_value)
    compared = _compare(subjects, files, table, len(job.data.classes), reporter)
    result = _result(job, subjects, compared)
    _count_unanswered(result, files)
    result["published"] = (
        job.published.model_dump() if job.published.scores or job.published.classes else None
    )
    result["aoi"] = None if aoi is None else str(aoi)
    result["places"] = _draw_places(run, job, split, subjects, files, compared, table)
    known = read_json(run.scores, "evaluate") if run.scores.exists() else {}
    write_json(run.scores, {**known, split: result})
    _draw_middle(run, job, subjects[0], files[0], table)
    _say(result, split, run, reporter)
    return result


def _compare(
    subjects: Sequence[Subject],
    files: Sequence[MapFiles],
    table: NDArray[np.uint8],
    num_classes: int,
    reporter: Reporter,
) -> list[Comparison]:
    import torch

    from outsize.data.feeding import num_cores, prefetch
    from outsize.infer.evaluate import compare_map, num_windows
    from outsize.metrics.boundary import tolerances_for

    sizes = [(each.scene.image.height, each.scene.image.width) for each in subjects]
    tolerances = tolerances_for(sizes)
    num_threads = torch.get_num_threads()
    with reporter.bar("evaluate", sum(num_windows(*size) for size in sizes), "window") as bar:

        def compare_one(number: int) -> Comparison:
            subject = subjects[number]
            return compare_map(
                files[number],
                subject.scene,
                table,
                num_classes,
                inside=subject.inside,
                tolerances=tolerances[number],
                bar=bar,
            )

        # each picture is counted by one thread, pictures side by side: teams of threads would wait for each other
        num_at_once = max(1, min(8, num_cores() // 2))
        torch.set_num_threads(1)
        try:
            return list(
                prefetch(
                    compare_one, range(len(subjects)), num_threads=num_at_once, num_ahead=2 * num_at_once
                )
            )
        finally:
            torch.set_num_threads(num_threads)


def _result(job: Job, subjects: Sequence[Subject], compared: Sequence[Comparison]) -> dict[str, Any]:
    import numpy as np

    from outsize.metrics.boundary import BoundaryScores
    from outsize.metrics.calibration import no_pixels
    from outsize.metrics.confusion import Scores

    names = tuple(each.name for each in job.data.classes)
    outlines = BoundaryScores(names, [each.outlines for each in compared if each.outlines is not None])
    boundary = outlines.as_dict()
    diagonal = boundary.get("diagonal")
    bf_of_scene = outlines.of_pictures() if diagonal else [float("nan")] * len(subjects)
    scenes = []
    for subject, found, bf in zip(subjects, compared, bf_of_scene, strict=True):
        scores = Scores(names, found.counts).as_dict()
        figures = {key: scores[key] for key in ("mean_iou", "pixel_accuracy", "num_px")}
        if diagonal:
            figures["mean_bf"] = None if np.isnan(bf) else round(bf, 6)
        trust = found.reliability
        if trust is not None:
            figures["expected_calibration_error"] = trust.as_dict()["expected_calibration_error"]
        scenes.append({"name": subject.name, "scene": str(subject.scene.image.path), **figures})
    total = Scores(names, np.sum([found.counts for found in compared], axis=0)).as_dict()
    num_scenes = np.sum([found.counts.sum(axis=1) > 0 for found in compared], axis=0)
    for name, num in zip(names, num_scenes, strict=True):
        total["classes"][name] |= {
            "num_scenes": int(num),
            "bf": diagonal["classes"][name] if diagonal else None,
        }
    trusts = [found.reliability for found in compared if found.reliability is not None]
    return {
        **total,
        "mean_bf": diagonal["mean"] if diagonal else None,
        "boundary": boundary,
        "scenes": scenes,
        "reliability": sum(trusts, no_pixels()).as_dict() if trusts else None,
    }


def _count_unanswered(result: dict[str, Any], files: Sequence[MapFiles]) -> None:
    """Add how many pixels the model had no answer for; where it answered everywhere, nothing is added."""
    for scene, each in zip(result["scenes"], files, strict=True):
        if each.unanswered_px:
            scene["unanswered_px"] = each.unanswered_px
    if num_px := sum(each.unanswered_px for each in files):
        result["unanswered_px"] = num_px


def _draw_places(
    run: RunFolder,
    job: Job,
    split: str,
    subjects: Sequence[Subject],
    files: Sequence[MapFiles],
    compared: Sequence[Comparison],
    table: NDArray[np.uint8],
) -> list[dict[str, Any]]:
    """Draw the best, the median and the worst places and return what scores.json says of them."""
    from outsize.infer.places import RANKS, pick_places
    from outsize.infer.view import view_window
    from outsize.tasks.draw import draw_place

    for rank in RANKS:
        for old in run.pictures.glob(f"{split}-{rank}-[0-9]*.png"):
            with output_errors(old):
                old.unlink(missing_ok=True)
    classes = [(each.name, each.colour) for each in job.data.classes]
    drawn: list[dict[str, Any]] = []
    places = [replace(place, scene=number) for number, found in enumerate(compared) for place in found.places]
    for rank, place in pick_places(places):
        subject = subjects[place.scene]
        number = 1 + sum(each["rank"] == rank for each in drawn)
        path = run.pictures / f"{split}-{rank}-{number}.png"
        seen = view_window(
            subject.scene,
            files[place.scene].classes,
            place.window,
            table,
            bands=job.data.bands,
            inside=subject.inside,
        )
        draw_place(path, *seen, classes)
        picture = path.relative_to(run.path).as_posix()
        drawn.append({"rank": rank, "picture": picture, "scene": subject.name, **place.as_dict()})
    return drawn


def _draw_middle(
    run: RunFolder, job: Job, subject: Subject, files: MapFiles, table: NDArray[np.uint8]
) -> None:
    from outsize.infer.view import view_window
    from outsize.tasks.draw import draw_triptych
    from outsize.tiles.window import middle_window

    image = subject.scene.image
    window = middle_window(image.height, image.width, 1024)
    place = f"rows {window.row}-{window.row_end}, columns {window.col}-{window.col_end}"
    seen = view_window(subject.scene, files.classes, window, table, bands=job.data.bands)
    classes = [(each.name, each.colour) for each in job.data.classes]
    draw_triptych(run.picture, *seen, classes, title=f"{subject.name}, {place}")


def _say(result: dict[str, Any], split: str, run: RunFolder, reporter: Reporter) -> None:
    from outsize.infer.unanswered import left_out_line

    for scene in result["scenes"]:
        if num_px := scene.get("unanswered_px"):
            text = left_out_line(scene["name"], num_px)
            reporter.say("warning", text, scene=scene["scene"], unanswered_px=num_px)
    trust = result["reliability"]
    error = f", calibration error {figure(trust['expected_calibration_error'])}" if trust else ""
    last = (
        f"{split}: mean IoU {figure(result['mean_iou'])}, pixel accuracy {figure(result['pixel_accuracy'])}"
        f"{error}: {run.scores}"
    )
    lines = [
        *class_lines(result),
        *outline_lines(result["boundary"]),
        *scene_lines(result["scenes"]),
        *published_lines(result),
        last,
    ]
    reporter.say("scores", "\n".join(lines), split=split, **result)
