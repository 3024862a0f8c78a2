"""Compares the objects of two runs: each against the same truth, and one against the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outsize.job import Job
from outsize.metrics.instances import Pictured, average_precision
from outsize.metrics.map_objects import Agreement, add
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.instances.evaluate import agree_on_map, beside_truth
from outsize.tasks.results import results_of
from outsize.tasks.subjects import Subject
from outsize.units import format_score

_HEADS = {"mask AP": ("mask", "ap"), "mask AP50": ("mask", "ap50"), "box AP": ("box", "ap")}
_HEADS |= {"box AP50": ("box", "ap50"), "F1": ("map", "f1")}


def compare(
    runs: tuple[RunFolder, RunFolder], jobs: tuple[Job, Job], subjects: Sequence[Subject], reporter: Reporter
) -> dict[str, Any]:
    """Score the objects of two runs and count those that both have."""
    names = [each.name for each in jobs[0].data.classes]
    results = [results_of(run, [each.scene for each in subjects], "objects", "objects") for run in runs]
    # the second run may have its classes in another order
    orders = [[names.index(each.name) for each in job.data.classes] for job in jobs]
    pictures: tuple[list[Pictured], list[Pictured]] = ([], [])
    on_maps: tuple[list[Agreement], list[Agreement]] = ([], [])
    both = []
    with reporter.bar("compare", len(subjects), "scene") as bar:
        for number, subject in enumerate(subjects):
            for own, agreed, result, order in zip(pictures, on_maps, results, orders, strict=True):
                path, least = result[number]
                seen = beside_truth(subject, path)
                found = [replace(each, class_id=order[each.class_id]) for each in seen.found]
                own.append(Pictured(seen.truth, found))
                agreed.append(agree_on_map(subject, own[-1], least))
            (_, least), (_, other_least) = (result[number] for result in results)
            sure = [each for each in pictures[0][-1].found if each.score >= least]
            both.append(agree_on_map(subject, Pictured(sure, pictures[1][-1].found), other_least))
            bar.advance()
    scored = [_scores(own, add(agreed), names) for own, agreed in zip(pictures, on_maps, strict=True)]
    total = add(both)
    return {
        "task": jobs[0].task,
        **{head: [each[part][key] for each in scored] for head, (part, key) in _HEADS.items()},
        "classes": {
            name: {"ap50": [each["mask"]["classes"][name]["ap50"] for each in scored]} for name in names
        },
        "num_objects": [total.num_true, total.num_found],
        "num_common": total.num_matched,  # with IoU 0.5 or more
        "agreement": round(total.f1, 6),
    }


def _scores(pictures: Sequence[Pictured], agreed: Agreement, names: Sequence[str]) -> dict[str, Any]:
    masks, boxes = (average_precision(pictures, len(names), kind=kind) for kind in ("mask", "box"))
    return {"mask": masks.as_dict(names), "box": boxes.as_dict(names), "map": agreed.as_dict()}


def comparison_lines(result: Mapping[str, Any], path: Path) -> list[str]:
    """Return all that is said of two runs."""
    lines = [f"A = {result['runs'][0]}", f"B = {result['runs'][1]}", f"{'':<24}{'A':>9}{'B':>9}{'B - A':>10}"]
    rows = [(head, result[head]) for head in _HEADS]
    rows += [(f"mask AP50 of {name}", row["ap50"]) for name, row in result["classes"].items()]
    for name, (here, there) in rows:
        change = "-" if here is None or there is None else f"{there - here:+.4f}"
        lines.append(f"{name:<24}{format_score(here):>9}{format_score(there):>9}{change:>10}")
    lines.append(
        f"{result['split']}: {result['num_common']:,} objects are on both maps, of {result['num_objects'][0]:,} and "
        f"{result['num_objects'][1]:,}: {path}"
    )
    return lines
