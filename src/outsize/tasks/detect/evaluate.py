"""Scores the boxes of a split: KITTI's average precision in each of its readings, and COCO's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.boxes import BoxFiles, SceneBoxes
from outsize.job import Job
from outsize.metrics.kitti import DIFFICULTIES, NUM_SAMPLES, READINGS, most_ap
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.detect.files import as_on_disk, read_boxes
from outsize.tasks.detect.picture import draw_boxes
from outsize.tasks.detect.settle import FoundBoxes
from outsize.tasks.detect.truth import beside, score, true_boxes
from outsize.tasks.results import results_of
from outsize.tasks.subjects import Subject
from outsize.units import format_score

READING_NAMES = {"ap_11": "11 points", "ap_40": "40 points", "ap_41": "mean of 41"}
RULE_NAMES = {"height": "low boxes neutral", "plain": "low boxes count"}
_HEADS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar")


def evaluate(
    run: RunFolder,
    job: Job,
    split: str,  # noqa: ARG001 (as segment)
    subjects: Sequence[Subject],
    reporter: Reporter,
) -> dict[str, Any]:
    """Score the boxes of scenes, leave a picture, and return the scores."""
    results = results_of(run, [each.scene for each in subjects], "map", "boxes")
    truth, found = _read(subjects, [path for path, _ in results], reporter)
    _draw(run, job, subjects[0], truth[0], found[0].take(found[0].scores >= results[0][1]))
    return {
        "task": job.task,
        "num_images": len(subjects),
        "num_true": int(sum(np.count_nonzero(each.class_ids >= 0) for each in truth)),
        "num_found": sum(len(each) for each in found),
        **score(truth, found, job.data).as_dict([each.name for each in job.data.classes]),
    }


def score_lines(split: str, result: Mapping[str, Any], run: RunFolder) -> list[str]:
    """Return all that is said of a split's scores."""
    lines = []
    for name, rules in (result["kitti"] or {}).items():
        lines.append(f"KITTI, {name:<24}" + "".join(f"{each:>11}" for each in DIFFICULTIES))
        for rule, figures in rules.items():
            for reading in READINGS:
                head = f"  {READING_NAMES[reading]}, {RULE_NAMES[rule]}"
                lines.append(f"{head:<31}" + _row(figures[reading]))
                orientation = figures.get(reading.replace("ap", "aos"))
                if orientation is not None:
                    lines.append(f"{'    orientation':<31}" + _row(orientation))
        counted = rules["height"]["num_valid"]
        lines.append(
            f"{'  objects that count':<31}" + "".join(f"{counted[each]:>11,}" for each in DIFFICULTIES)
        )
        if min(counted.values()) < NUM_SAMPLES:
            most = {each: most_ap(num, "ap_40") if num else None for each, num in counted.items()}
            lines.append(f"{'  at most, so few, 40 points':<31}" + _row(most))
    lines.append(f"{'COCO':<16}" + "".join(f"{head.removeprefix('ap_'):>9}" for head in _HEADS))
    lines.append(" " * 16 + "".join(f"{format_score(result['box'][head]):>9}" for head in _HEADS))
    for name, row in result["box"]["classes"].items():
        figures = f"AP {format_score(row['ap'])}, AP50 {format_score(row['ap50'])}"
        lines.append(f"{name:<16}{figures}, {row['num_true']:,} true, {row['num_found']:,} found")
    cited = result["published"]
    if cited:
        scores = ", ".join(f"{name} {value}" for name, value in cited["scores"].items())
        lines.append(f"published{': ' if cited['source'] else ''}{cited['source']}: {scores}")
    lines.append(
        f"{split}: box AP {format_score(result['box']['ap'])}, {result['num_found']:,} boxes found "
        f"of {result['num_true']:,} true ones in {result['num_images']:,} pictures: {run.scores}"
    )
    return lines


def compare(
    runs: tuple[RunFolder, RunFolder], jobs: tuple[Job, Job], subjects: Sequence[Subject], reporter: Reporter
) -> dict[str, Any]:
    """Score the boxes of two runs against the same truth."""
    names = [each.name for each in jobs[0].data.classes]
    result: dict[str, Any] = {"task": jobs[0].task, "figures": {}}
    for run, job in zip(runs, jobs, strict=True):
        results = results_of(run, [each.scene for each in subjects], "map", "boxes")
        truth, found = _read(subjects, [path for path, _ in results], reporter)
        order = np.array([names.index(each.name) for each in job.data.classes])
        renamed = [FoundBoxes(each.sides, order[each.class_ids], each.scores) for each in found]
        for name, figure in _figures(score(truth, renamed, jobs[0].data).as_dict(names)).items():
            result["figures"].setdefault(name, []).append(figure)
    return result


def comparison_lines(result: Mapping[str, Any], path: Path) -> list[str]:
    """Return all that is said of two runs."""
    lines = [f"A = {result['runs'][0]}", f"B = {result['runs'][1]}", f"{'':<28}{'A':>9}{'B':>9}{'B - A':>10}"]
    for name, (here, there) in result["figures"].items():
        change = "-" if here is None or there is None else f"{there - here:+.4f}"
        lines.append(f"{name:<28}{format_score(here):>9}{format_score(there):>9}{change:>10}")
    return [*lines, f"{result['split']}: {path}"]


def _figures(scores: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures that two runs are compared by."""
    figures = {"box AP": scores["box"]["ap"], "box AP50": scores["box"]["ap50"]}
    for name, rules in (scores["kitti"] or {}).items():
        for difficulty in DIFFICULTIES:
            figures[f"{name}, {difficulty}, 40 points"] = rules["height"]["ap_40"][difficulty]
    return figures


def _read(
    subjects: Sequence[Subject], paths: Sequence[Path], reporter: Reporter
) -> tuple[list[SceneBoxes], list[FoundBoxes]]:
    files, pairs = BoxFiles(), []
    with reporter.bar("evaluate", len(subjects), "scene") as bar:
        for subject, path in zip(subjects, paths, strict=True):
            truth = true_boxes(subject.scene, files)
            pairs.append(beside(truth, read_boxes(path), subject.scene, subject.inside))
            bar.advance()
    return [truth for truth, _ in pairs], [found for _, found in pairs]


def _row(figures: Mapping[str, float | None]) -> str:
    return "".join(f"{format_score(figures[each]):>11}" for each in DIFFICULTIES)


def _draw(run: RunFolder, job: Job, subject: Subject, truth: SceneBoxes, found: FoundBoxes) -> None:
    """Draw true and found boxes of the first scene, one below the other."""
    counts = truth.class_ids >= 0
    true = FoundBoxes(truth.boxes.sides, truth.class_ids, truth.boxes.scores).take(counts)
    panels = {f"{subject.name}: {len(true)} labelled": true, f"{len(found)} found": found}
    classes = [(each.name, each.colour) for each in job.data.classes]
    draw_boxes(run.picture, as_on_disk(subject.scene.image), panels, classes, bands=job.data.bands)
