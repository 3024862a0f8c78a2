"""Compares the classes that two runs found for the same pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outsize.job import Job
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.classify.answers import scores_of
from outsize.tasks.classify.evaluate import as_dict, found_in, pictures_of, rows_of
from outsize.tasks.subjects import Subject
from outsize.units import format_score


def compare(
    runs: tuple[RunFolder, RunFolder],
    jobs: tuple[Job, Job],
    subjects: Sequence[Subject],
    reporter: Reporter,  # noqa: ARG001 (as all tasks)
) -> dict[str, Any]:
    """Score two runs and count the pictures that both give one class."""
    names = tuple(each.name for each in jobs[0].data.classes)
    pictures = pictures_of(subjects, jobs[0])
    found = [found_in(rows_of(run, pictures, names), names) for run in runs]
    scored = [as_dict(scores_of(names, pictures.class_ids, each)) for each in found]
    return {
        "task": jobs[0].task,
        "accuracy": [each["accuracy"] for each in scored],
        "classes": {name: {"recall": [each["classes"][name]["recall"] for each in scored]} for name in names},
        "agreement": round(float(np.mean(found[0] == found[1])), 6),
        "num_pictures": len(pictures),
    }


def comparison_lines(result: Mapping[str, Any], path: Path) -> list[str]:
    """Return all that is said of two runs."""
    lines = [f"A = {result['runs'][0]}", f"B = {result['runs'][1]}", f"{'':<24}{'A':>9}{'B':>9}{'B - A':>10}"]
    rows = [("accuracy", result["accuracy"])]
    rows += [(f"recall of {name}", row["recall"]) for name, row in result["classes"].items()]
    for name, (here, there) in rows:
        change = "-" if here is None or there is None else f"{there - here:+.4f}"
        lines.append(f"{name:<24}{format_score(here):>9}{format_score(there):>9}{change:>10}")
    lines.append(
        f"{result['split']}: both give {result['agreement']:.2%} of {result['num_pictures']:,} pictures one class: "
        f"{path}"
    )
    return lines
