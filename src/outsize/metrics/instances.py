"""COCO's average precision of boxes and masks, from objects whose masks are local windows.

For each class and IoU threshold, the found objects of all pictures stand in a row, the surest first. Each takes the
true object of its picture that it overlaps best, if that is free and the overlap is enough. Precision at 101 recalls,
averaged over recalls, classes that are there in truth, and ten thresholds, is AP. What the official evaluator computes
from pictures full of masks is computed here from pairs that meet: https://cocodataset.org/#detection-eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outsize.data.object import Object, shared_px

Kind = Literal["mask", "box"]
THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
SIZES = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
USUAL_MOST = 100  # found objects of a class in a picture that COCO counts
RECALLS = np.linspace(0, 1, 101)
_CLOSE = 1e-10


@dataclass(frozen=True)
class Pictured:
    """One picture's true objects and those found; a true one of a class below 0 is a place that is not scored."""

    truth: Sequence[Object]
    found: Sequence[Object]


@dataclass
class _Row:
    """Found objects of one class and size over all pictures, in the order in which they were met."""

    num_true: int = 0
    scores: list[float] = field(default_factory=list)
    hits: list[NDArray[np.bool_]] = field(default_factory=list)  # at each threshold
    ignored: list[NDArray[np.bool_]] = field(default_factory=list)


@dataclass(frozen=True)
class Precision:
    """Average precision and recall of one kind: of classes (nan where there is no truth) at thresholds."""

    kind: Kind
    precision: dict[str, NDArray[np.float64]]  # size -> class, threshold
    recall: dict[str, NDArray[np.float64]]
    num_true: tuple[int, ...]
    num_found: tuple[int, ...]
    most: int
    scale: float

    @property
    def ap(self) -> float:
        """AP over all thresholds."""
        return _mean(self.precision["all"])

    @property
    def ap50(self) -> float:
        """AP at IoU 0.5."""
        return _mean(self.precision["all"][:, 0])

    def as_dict(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return the figures for scores.json; None where there is no truth to find."""
        every = self.precision["all"]
        figures = {"ap": every, "ap50": every[:, 0], "ap75": every[:, 5]}
        figures |= {f"ap_{size}": self.precision[size] for size in ("small", "medium", "large")}
        figures |= {"ar": self.recall["all"]}
        classes = {
            name: {
                "ap": _figure(every[number]),
                "ap50": _figure(every[number, :1]),
                "num_true": self.num_true[number],
                "num_found": self.num_found[number],
            }
            for number, name in enumerate(class_names)
        }
        about = {"most_found": self.most, "size_scale": self.scale}
        return {**{name: _figure(each) for name, each in figures.items()}, **about, "classes": classes}


def average_precision(
    pictures: Sequence[Pictured], num_classes: int, *, kind: Kind = "mask", scale: float = 1.0
) -> Precision:
    """Score found objects against true ones.

    Of a class 100 found objects count in each picture, as COCO has it, or more where more are true.
    `scale` is what a side of a picture is multiplied by before objects are called small, medium or large.
    """
    most = max([USUAL_MOST, *(len(each.truth) for each in pictures)])
    rows = {(number, size): _Row() for number in range(num_classes) for size in SIZES}
    for picture in pictures:
        for number in range(num_classes):
            _match_class(picture, number, {size: rows[number, size] for size in SIZES}, kind, most, scale)
    shape = (num_classes, len(THRESHOLDS))
    precision = {size: np.full(shape, np.nan) for size in SIZES}
    recall = {size: np.full(shape, np.nan) for size in SIZES}
    for (number, size), row in rows.items():
        if row.num_true:
            precision[size][number], recall[size][number] = _accumulate(row)
    return Precision(
        kind,
        precision,
        recall,
        tuple(_count([each.truth for each in pictures], number) for number in range(num_classes)),
        tuple(_count([each.found for each in pictures], number) for number in range(num_classes)),
        most,
        scale,
    )


def _match_class(
    picture: Pictured, number: int, rows: dict[str, _Row], kind: Kind, most: int, scale: float
) -> None:
    """Add one picture's objects of one class to the rows of all sizes."""
    truth = [each for each in picture.truth if each.class_id == number]
    places = [each for each in picture.truth if each.class_id < 0]
    found = [each for each in picture.found if each.class_id == number]
    found = sorted(found, key=lambda each: -each.score)[:most]
    if not truth and not found:
        return
    overlaps = _overlaps(found, [*truth, *places], len(truth), kind)
    true_px = np.array([each.num_px for each in truth], float) * scale**2
    found_px = (
        np.array([each.num_px if kind == "mask" else each.window.num_px for each in found], float) * scale**2
    )
    for size, row in rows.items():
        low, high = SIZES[size]
        outside = np.concatenate([(true_px < low) | (true_px > high), np.ones(len(places), np.bool_)])
        hits, ignored = _match(overlaps, outside, len(truth))
        ignored |= ~hits & ((found_px < low) | (found_px > high))[:, None]
        row.num_true += int(np.count_nonzero(~outside))
        row.scores += [each.score for each in found]
        row.hits.append(hits & ~ignored)
        row.ignored.append(ignored)


def _overlaps(
    found: Sequence[Object], truth: Sequence[Object], num_single: int, kind: Kind
) -> list[list[tuple[int, float]]]:
    """Return for each found object the true ones that it meets, with the IoU; of places, the share of the found one."""
    import shapely

    met: list[list[tuple[int, float]]] = [[] for _ in found]
    if not found or not truth:
        return met
    here, there = (shapely.box(*np.array([each.box for each in objects]).T) for objects in (found, truth))
    one, other = shapely.STRtree(there).query(here, predicate="intersects")
    for index, target in sorted(zip(one.tolist(), other.tolist(), strict=True)):
        mine, true = found[index], truth[target]
        if kind == "box":
            shared = mine.window.intersect(true.window).num_px
            mine_px, true_px = mine.window.num_px, true.window.num_px
        else:
            shared, mine_px, true_px = shared_px(mine, true), mine.num_px, true.num_px
        if shared:
            whole = mine_px if target >= num_single else mine_px + true_px - shared
            met[index].append((target, shared / whole))
    return met


def _match(
    overlaps: Sequence[Sequence[tuple[int, float]]], outside: NDArray[np.bool_], num_single: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Give each found object, the surest first, the best true one that is free; at each threshold.

    True objects of this size go before others, which make the finder's answer neither right nor wrong.
    """
    hits = np.zeros((len(overlaps), len(THRESHOLDS)), np.bool_)
    ignored = np.zeros_like(hits)
    for column, threshold in enumerate(THRESHOLDS):
        taken: set[int] = set()
        for index, met in enumerate(overlaps):
            best, best_rank = None, (False, min(threshold, 1 - _CLOSE), -1)
            for target, share in met:
                rank = (not outside[target], share, target)
                if share >= min(threshold, 1 - _CLOSE) and target not in taken and rank >= best_rank:
                    best, best_rank = target, rank
            if best is not None:
                hits[index, column], ignored[index, column] = True, outside[best]
                if best < num_single:  # a place may be met by any number
                    taken.add(best)
    return hits, ignored


def _accumulate(row: _Row) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean precision over recalls and the largest recall, at each threshold."""
    precision, recall = np.zeros(len(THRESHOLDS)), np.zeros(len(THRESHOLDS))
    if not row.scores:
        return precision, recall
    order = np.argsort(-np.array(row.scores), kind="stable")
    hits, counted = np.concatenate(row.hits)[order], ~np.concatenate(row.ignored)[order]
    for column in range(len(THRESHOLDS)):
        right = np.cumsum(hits[:, column] & counted[:, column])
        answers = np.cumsum(counted[:, column])
        reached = right / row.num_true
        share = right / np.maximum(answers, 1)
        share = np.maximum.accumulate(share[::-1])[::-1]
        at = np.searchsorted(reached, RECALLS, side="left")
        precision[column] = np.where(at < len(share), share[np.minimum(at, len(share) - 1)], 0).mean()
        recall[column] = reached[-1]
    return precision, recall


def _count(pictures: Sequence[Sequence[Object]], number: int) -> int:
    return sum(each.class_id == number for objects in pictures for each in objects)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _figure(values: NDArray[np.float64]) -> float | None:
    mean = _mean(values)
    return None if np.isnan(mean) else round(mean, 6)
