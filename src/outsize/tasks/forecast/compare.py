"""Compares the forecasts of two runs for the same windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.frames import to_levels
from outsize.job import Job
from outsize.metrics.forecast import count_forecast, no_counts
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.forecast.answers import truth_of
from outsize.tasks.forecast.evaluate import means_of, rains_of
from outsize.tasks.subjects import Subject
from outsize.units import format_score


def compare(
    runs: tuple[RunFolder, RunFolder],
    jobs: tuple[Job, Job],
    subjects: Sequence[Subject],
    reporter: Reporter,
) -> dict[str, Any]:
    """Score two runs by lead and count the pixels that both say are wet or both say are dry."""
    frames = jobs[0].data.frames
    counts = [no_counts(frames.num_out, len(frames.thresholds)) for _ in runs]
    level, num_same, num_px = int(to_levels(np.array(frames.thresholds[0]))), 0, 0
    pairs = zip(subjects, *(rains_of(run, _of(run, runs[0], subjects)) for run in runs), strict=True)
    with reporter.bar("compare", len(subjects), "forecast") as bar:
        for subject, (here, *_), (there, *_) in pairs:
            came = truth_of(subject.scene.labels)
            counts = [
                count + count_forecast(found, came, frames.thresholds)
                for count, found in zip(counts, (here, there), strict=True)
            ]
            num_same += int(np.count_nonzero((here >= level) == (there >= level)))
            num_px += here.size
            bar.advance()
    means = [means_of(each, frames) for each in counts]
    return {
        "task": jobs[0].task,
        "leads": list(frames.lead_names),
        "threshold": frames.thresholds[0],
        "mean_csi": [each["csi"][0] for each in means],
        "mean_fss": [each["fss"][0] for each in means],
        "csi": [each.as_dict()["csi"] for each in counts],
        "agreement": round(num_same / num_px, 6),
        "num_forecasts": len(subjects),
    }


def comparison_lines(result: Mapping[str, Any], path: Path) -> list[str]:
    """Return all that is said of two runs."""
    lines = [f"A = {result['runs'][0]}", f"B = {result['runs'][1]}"]
    head = f"CSI at {result['threshold']:g} mm/h"
    lines.append(f"{head:<24}{'A':>9}{'B':>9}{'B - A':>10}")
    rows = [
        (name, (result["csi"][0][lead][0], result["csi"][1][lead][0]))
        for lead, name in enumerate(result["leads"])
    ]
    rows += [("mean", result["mean_csi"]), ("mean FSS", result["mean_fss"])]
    for name, (here, there) in rows:
        change = "-" if here is None or there is None else f"{there - here:+.4f}"
        lines.append(f"{name:<24}{format_score(here):>9}{format_score(there):>9}{change:>10}")
    lines.append(
        f"{result['split']}: both say the same of {result['agreement']:.2%} of the pixels of "
        f"{result['num_forecasts']} forecasts: {path}"
    )
    return lines


def _of(run: RunFolder, first: RunFolder, subjects: Sequence[Subject]) -> list[Subject]:
    """Return the windows as a run knows them: by its own files of the same names."""
    from dataclasses import replace

    if run is first:
        return list(subjects)
    moved = []
    for subject in subjects:
        image = replace(subject.scene.image, path=run.labels / subject.scene.image.path.name)
        moved.append(replace(subject, scene=replace(subject.scene, image=image)))
    return moved
