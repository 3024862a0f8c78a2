"""Scores the maps of a split: counts of every scene, their sums, and pictures of places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.data.feeding import num_cores, prefetch
from outsize.data.scenes import label_table
from outsize.job import Job
from outsize.metrics.boundary import BoundaryScores, tolerances_for
from outsize.metrics.calibration import no_pixels
from outsize.metrics.confusion import Scores
from outsize.progress import Reporter
from outsize.runs import RunFolder, output_errors
from outsize.tasks.segment.maps import left_out_line
from outsize.tasks.segment.scores.count import Comparison, compare_map, num_windows
from outsize.tasks.segment.scores.draw import draw_place, draw_triptych
from outsize.tasks.segment.scores.files import MapFiles, files_of
from outsize.tasks.segment.scores.places import RANKS, pick_places
from outsize.tasks.segment.scores.view import view_window
from outsize.tasks.subjects import Subject
from outsize.tiles.window import middle_window


def evaluate(
    run: RunFolder, job: Job, split: str, subjects: Sequence[Subject], reporter: Reporter
) -> dict[str, Any]:
    """Score the maps of scenes, leave pictures of some places, and return the scores."""
    files = files_of(run, [each.scene for each in subjects])
    table = label_table([each.value for each in job.data.classes], job.data.ignore_value)
    compared = _count(subjects, files, table, len(job.data.classes), reporter)
    result = _result(job, subjects, compared)
    _count_unanswered(result, files)
    result["places"] = _draw_places(run, job, split, subjects, files, compared, table)
    _draw_middle(run, job, subjects[0], files[0], table)
    _warn_left_out(result, reporter)
    return result


def _warn_left_out(result: Mapping[str, Any], reporter: Reporter) -> None:
    for scene in result["scenes"]:
        if num_px := scene.get("unanswered_px"):
            text = left_out_line(scene["name"], num_px)
            reporter.say("warning", text, scene=scene["scene"], unanswered_px=num_px)


def _count(
    subjects: Sequence[Subject],
    files: Sequence[MapFiles],
    table: NDArray[np.uint8],
    num_classes: int,
    reporter: Reporter,
) -> list[Comparison]:
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
    image = subject.scene.image
    window = middle_window(image.height, image.width, 1024)
    place = f"rows {window.row}-{window.row_end}, columns {window.col}-{window.col_end}"
    seen = view_window(subject.scene, files.classes, window, table, bands=job.data.bands)
    classes = [(each.name, each.colour) for each in job.data.classes]
    draw_triptych(run.picture, *seen, classes, title=f"{subject.name}, {place}")
