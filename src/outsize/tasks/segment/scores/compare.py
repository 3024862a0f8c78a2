"""Compares the maps of two runs: each against the same labels, and one against the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.scenes import label_table
from outsize.job import Job
from outsize.metrics.confusion import Counts, Scores
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.segment.scores.count import compare_map, compare_maps, num_windows
from outsize.tasks.segment.scores.files import MapFiles, files_of
from outsize.tasks.subjects import Subject
from outsize.units import format_score

Tables = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def compare(
    runs: tuple[RunFolder, RunFolder], jobs: tuple[Job, Job], subjects: Sequence[Subject], reporter: Reporter
) -> dict[str, Any]:
    """Score the maps of two runs and count where they agree."""
    names = tuple(each.name for each in jobs[0].data.classes)
    # the second run may give its classes other values, and in another order
    values = [{each.name: each.value for each in job.data.classes} for job in jobs]
    first, second = (
        label_table([of_name[name] for name in names], job.data.ignore_value)
        for of_name, job in zip(values, jobs, strict=True)
    )
    here, there = (files_of(run, [each.scene for each in subjects]) for run in runs)
    pairs = list(zip(here, there, strict=True))
    counts = _count(subjects, pairs, (first, second), len(names), reporter)
    return {
        **_differences(names, counts),
        "scenes": [
            {"name": subject.name, **_differences(names, [each])}
            for subject, each in zip(subjects, counts, strict=True)
        ],
    }


def comparison_lines(result: Mapping[str, Any], path: Path) -> list[str]:
    """Return all that is said of two runs."""
    lines = [f"A = {result['runs'][0]}", f"B = {result['runs'][1]}"]
    lines.append(f"{'IoU':<16}{'A':>9}{'B':>9}{'B - A':>10}")
    for name, row in result["classes"].items():
        lines.append(_line(name, row["iou"], row["difference"]))
    lines.append(_line("mean", result["mean_iou"], result["difference"]))
    share = "-" if result["agreement"] is None else f"{100 * result['agreement']:.2f} %"
    return [*lines, f"{result['split']}: the maps agree on {share} of {result['num_px']:,} pixels: {path}"]


def _count(
    subjects: Sequence[Subject],
    files: Sequence[tuple[MapFiles, MapFiles]],
    tables: Tables,
    num_classes: int,
    reporter: Reporter,
) -> list[tuple[Counts, Counts, Counts]]:
    """Return for each scene: truth against the first map, truth against the second, first against second."""
    num = 3 * sum(num_windows(each.scene.image.height, each.scene.image.width) for each in subjects)
    counts = []
    with reporter.bar("compare", num, "window") as bar:
        for subject, (here, there) in zip(subjects, files, strict=True):
            inside = subject.inside
            first, second = (
                compare_map(
                    maps, subject.scene, tables[0], num_classes, map_table=table, inside=inside, bar=bar
                ).counts
                for maps, table in zip((here, there), tables, strict=True)
            )
            paths = (here.classes, there.classes)
            both = compare_maps(paths, tables, subject.scene, num_classes, inside=inside, bar=bar)
            counts.append((first, second, both))
    return counts


def _differences(names: tuple[str, ...], counts: Sequence[tuple[Counts, Counts, Counts]]) -> dict[str, Any]:
    """Return the scores of both runs, what the second has more, and the share of pixels on which they agree."""
    first, second, both = (np.sum(each, axis=0) for each in zip(*counts, strict=True))
    scores = [Scores(names, each).as_dict() for each in (first, second)]
    overall = {
        key: [each[key] for each in scores]
        for key in ("mean_iou", "pixel_accuracy", "mean_f1", "weighted_iou")
    }
    classes = {}
    for name in names:
        ious = [each["classes"][name]["iou"] for each in scores]
        classes[name] = {"iou": ious, "difference": _difference(*ious)}
    num_px = int(both.sum())
    return {
        **overall,
        "difference": _difference(*overall["mean_iou"]),
        "classes": classes,
        "agreement": round(float(np.trace(both)) / num_px, 6) if num_px else None,
        "num_px": num_px,
    }


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else round(after - before, 6)


def _line(name: str, ious: Sequence[float | None], difference: float | None) -> str:
    here, there = map(format_score, ious)
    change = "-" if difference is None else f"{difference:+.4f}"
    return f"{name:<16}{here:>9}{there:>9}{change:>10}"
