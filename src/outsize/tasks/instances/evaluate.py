"""Scores the objects of a split: COCO's average precision, and F1 of outlines on the map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outsize.data.formats import read_results
from outsize.data.object import shared_px
from outsize.data.object_files import ObjectFiles
from outsize.job import Job
from outsize.metrics.coco_check import is_installed, official_scores
from outsize.metrics.instances import Pictured, average_precision
from outsize.metrics.map_objects import Agreement, add, agree
from outsize.progress import Reporter
from outsize.raster.vectors import outline
from outsize.runs import RunFolder
from outsize.tasks.instances.picture import draw_objects
from outsize.tasks.instances.truth import beside, true_objects
from outsize.tasks.results import results_of
from outsize.tasks.subjects import Subject
from outsize.units import format_score

_OFFICIAL_PX = (
    1 << 28
)  # pixels of masks as large as their pictures that the official evaluator is given at once
_HEADS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar")


def evaluate(
    run: RunFolder,
    job: Job,
    split: str,  # noqa: ARG001 (as segment)
    subjects: Sequence[Subject],
    reporter: Reporter,
) -> dict[str, Any]:
    """Score the objects of scenes, leave a picture, and return the scores."""
    results = results_of(run, [each.scene for each in subjects], "objects", "objects")
    names = [each.name for each in job.data.classes]
    pictures, agreements = [], []
    with reporter.bar("evaluate", len(subjects), "scene") as bar:
        for subject, (path, min_score) in zip(subjects, results, strict=True):
            picture = beside_truth(subject, path)
            pictures.append(picture)
            agreements.append(agree_on_map(subject, picture, min_score))
            bar.advance()
    masks, boxes = (average_precision(pictures, len(names), kind=kind) for kind in ("mask", "box"))
    _draw(run, job, subjects[0], pictures[0])
    return {
        "task": job.task,
        "num_images": len(subjects),
        "mask": masks.as_dict(names),
        "box": boxes.as_dict(names),
        "map": {"iou": 0.5, "min_score": results[0][1], **add(agreements).as_dict()},
        "sizes_at": "the pictures' own size"
        if job.data.shrink == 1
        else f"1/{job.data.shrink} of the pictures' size",
        "scenes": [
            {"name": subject.name, "scene": str(subject.scene.image.path), **agreement.as_dict()}
            for subject, agreement in zip(subjects, agreements, strict=True)
        ],
        "official": _official(pictures, subjects, masks.most),
    }


def beside_truth(subject: Subject, path: Path) -> Pictured:
    """Put what a file says was found in a scene beside what is true of it."""
    truth = true_objects(subject.scene, ObjectFiles())
    return beside(truth, read_results(path), subject.scene.areas, subject.inside)


def agree_on_map(subject: Subject, picture: Pictured, min_score: float) -> Agreement:
    """Compare outlines on the ground; of what was found, only what the map has."""
    georef = subject.scene.image.georef
    places = [each for each in picture.truth if each.class_id < 0]
    found = [
        each
        for each in picture.found
        if each.score >= min_score
        and all(
            2 * shared_px(each, place) < each.num_px
            for place in places
            if each.window.intersect(place.window).num_px
        )
    ]
    parts = []
    for class_id in sorted({each.class_id for each in (*found, *picture.truth)} - {-1}):
        own = [each for each in found if each.class_id == class_id]
        true = [each for each in picture.truth if each.class_id == class_id]
        scores = [each.score for each in own]
        parts.append(agree(outline(own, georef), outline(true, georef), scores))
    return add(parts)


def _official(pictures: Sequence[Pictured], subjects: Sequence[Subject], most: int) -> dict[str, Any] | None:
    """Let the official evaluator say its figures too, where it is installed and the masks are not too many for it."""
    sizes = [(each.scene.image.height, each.scene.image.width) for each in subjects]
    has_places = any(each.class_id < 0 for picture in pictures for each in picture.truth)
    num_px = sum(
        (len(picture.truth) + len(picture.found)) * height * width
        for picture, (height, width) in zip(pictures, sizes, strict=True)
    )
    if not is_installed() or has_places or num_px > _OFFICIAL_PX:
        return None
    by = "torchmetrics over faster-coco-eval"
    return {
        "by": by,
        **{name: round(each, 6) for name, each in official_scores(pictures, sizes, most).items()},
    }


def _draw(run: RunFolder, job: Job, subject: Subject, picture: Pictured) -> None:
    """Draw true and found objects of the first scene side by side."""
    colours = [each.colour for each in job.data.classes]
    truth = [each for each in picture.truth if each.class_id >= 0]
    found = [each for each in picture.found if each.score >= job.predict.objects.min_score]
    panels = {f"{subject.name}: {len(truth)} labelled": truth, f"{len(found)} found": found}
    draw_objects(run.picture, subject.scene.image, panels, colours, bands=job.data.bands)


def score_lines(split: str, result: Mapping[str, Any], run: RunFolder) -> list[str]:
    """Return all that is said of a split's scores."""
    width = max(len(name) for name in (*result["mask"]["classes"], "mask")) + 1
    lines = [" " * width + "".join(f"{head:>11}" for head in _HEADS)]
    for kind in ("mask", "box"):
        lines.append(
            f"{kind:<{width}}" + "".join(f"{format_score(result[kind][head]):>11}" for head in _HEADS)
        )
    lines.append(
        f"small, medium and large: below 32 x 32, below 96 x 96 px, and above, at {result['sizes_at']}"
    )
    for name, row in result["mask"]["classes"].items():
        lines.append(
            f"{name:<{width}}mask AP {format_score(row['ap'])}, AP50 {format_score(row['ap50'])}, "
            f"{row['num_true']:,} true, {row['num_found']:,} found"
        )
    if result["official"]:
        official = result["official"]
        lines.append(
            f"by {official['by']}: mask AP {format_score(official['ap'])}, AP50 {format_score(official['ap50'])}"
        )
    cited = result["published"]
    if cited:
        figures = ", ".join(f"{name} {value}" for name, value in cited["scores"].items())
        lines.append(f"published{': ' if cited['source'] else ''}{cited['source']}: {figures}")
    on_map = result["map"]
    lines.append(
        f"{split}: mask AP50 {format_score(result['mask']['ap50'])}, F1 at IoU 0.5 {format_score(on_map['f1'])} "
        f"({on_map['num_matched']:,} of {on_map['num_true']:,} true, {on_map['num_found']:,} found): {run.scores}"
    )
    return lines
