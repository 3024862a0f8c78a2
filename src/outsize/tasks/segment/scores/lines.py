"""Lays out the scores of a split as lines of text: classes, outlines, scenes, and a published result beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outsize.runs import RunFolder
from outsize.units import format_score

_HEADS = {"iou": "IoU", "accuracy": "accuracy", "f1": "F1", "bf": "BF"}
# weighted by its true pixels, the accuracy of classes is that of all pixels
_MEANS = {
    "mean of classes": {key: f"mean_{key}" for key in _HEADS},
    "mean of pixels": {"iou": "weighted_iou", "accuracy": "pixel_accuracy"},
}
_MANY_SCENES = 12  # that are printed; all are in scores.json

Row = Mapping[str, Any]


def score_lines(split: str, result: Row, run: RunFolder) -> list[str]:
    """Return all that is said of a split's scores."""
    trust = result["reliability"]
    error = f", calibration error {format_score(trust['expected_calibration_error'])}" if trust else ""
    return [
        *class_lines(result),
        *outline_lines(result["boundary"]),
        *scene_lines(result["scenes"]),
        *published_lines(result),
        f"{split}: mean IoU {format_score(result['mean_iou'])}, "
        f"pixel accuracy {format_score(result['pixel_accuracy'])}{error}: {run.scores}",
    ]


def class_lines(result: Row) -> list[str]:
    """Return the table of classes, with the means over classes and over pixels below it."""
    rows = _rows(result)
    width = max(len(name) for name in rows) + 1
    lines = [f"{'class':<{width}}{'IoU':>8}{'accuracy':>10}{'F1':>8}{'BF':>8}{'pixels':>14}"]
    for name, row in rows.items():
        iou, accuracy, f1, bf = (format_score(row[key]) if key in row else "" for key in _HEADS)
        num_px = row.get("num_px", result["num_px"])
        lines.append(f"{name:<{width}}{iou:>8}{accuracy:>10}{f1:>8}{bf:>8}{num_px:>14,}")
    return lines


def outline_lines(boundary: Row) -> list[str]:
    """Return the means of the boundary F by pixels; that by the diagonal is in the table of classes."""
    by_px = boundary["pixels"]
    return [
        f"{'boundary F within':<20}" + "".join(f"{f'{px} px':>8}" for px in by_px),
        f"{'mean of classes':<20}" + "".join(f"{format_score(each['mean']):>8}" for each in by_px.values()),
        f"{'only where present':<20}"
        + "".join(f"{format_score(each['mean_where_present']):>8}" for each in by_px.values()),
    ]


def scene_lines(scenes: Sequence[Row]) -> list[str]:
    """Return the table of scenes; of many the worst."""
    if len(scenes) < 2:
        return []
    title, shown = "scene", list(scenes)
    if len(scenes) > _MANY_SCENES:
        # a scene without a labelled pixel has no score
        scored = [each for each in scenes if each["mean_iou"] is not None]
        shown = sorted(scored, key=lambda each: float(each["mean_iou"]))[:_MANY_SCENES]
        title = f"worst of {len(scenes)}"
    width = max(16, *(len(each["name"]) for each in shown))
    lines = [f"{title:<{width}}{'mean IoU':>10}{'right':>8}{'BF':>8}{'pixels':>14}"]
    for each in shown:
        figures = f"{format_score(each['mean_iou']):>10}{format_score(each['pixel_accuracy']):>8}"
        figures += f"{format_score(each.get('mean_bf')):>8}"
        lines.append(f"{each['name']:<{width}}{figures}{each['num_px']:>14,}")
    return lines


def published_lines(result: Row) -> list[str]:
    """Return the run's figures beside those that were published, where the job cites any."""
    cited = result["published"]
    if not cited:
        return []
    theirs, ours = _rows(cited["scores"] | {"classes": cited["classes"]}), _rows(result)
    keys = [key for key in _HEADS if any(row.get(key) is not None for row in theirs.values())]
    width = max(len(name) for name in (*theirs, *cited["scores"])) + 1
    lines = [f"beside what was published{': ' if cited['source'] else ''}{cited['source']}"]
    if keys:
        lines.append(" " * width + "".join(f"{_HEADS[key]:>9}{'publ.':>9}" for key in keys))
    for name, row in theirs.items():
        if any(row.get(key) is not None for key in keys):
            cells = [(ours.get(name, {}).get(key), row.get(key)) for key in keys]
            lines.append(
                f"{name:<{width}}" + "".join(f"{format_score(a):>9}{format_score(b):>9}" for a, b in cells)
            )
    shown = {name for means in _MEANS.values() for name in means.values()}
    for name, value in cited["scores"].items():
        if name not in shown:
            own = result.get(name)
            lines.append(
                f"{name:<{width}}{format_score(own if isinstance(own, float) else None):>9}{format_score(value):>9}"
            )
    return lines


def _rows(scores: Row) -> dict[str, dict[str, Any]]:
    """Return the rows of the table: each class, then the means."""
    rows = {name: dict(row) for name, row in scores["classes"].items()}
    means = {title: {key: scores.get(name) for key, name in names.items()} for title, names in _MEANS.items()}
    return rows | means
