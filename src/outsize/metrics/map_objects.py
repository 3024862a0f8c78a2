"""How well outlines on a map agree with true ones: precision, recall and F1 of pairs with IoU 0.5 or more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Agreement:
    """Counts of outlines that were found, true, and matched to each other one by one."""

    num_matched: int
    num_found: int
    num_true: int
    mean_iou: float  # of the matched ones; nan where there is none

    @property
    def f1(self) -> float:
        """F1; 1 where nothing is true and nothing was found."""
        total = self.num_found + self.num_true
        return 2 * self.num_matched / total if total else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for scores.json."""
        return {
            "f1": round(self.f1, 6),
            "precision": round(self.num_matched / self.num_found, 6) if self.num_found else None,
            "recall": round(self.num_matched / self.num_true, 6) if self.num_true else None,
            "mean_iou": None if np.isnan(self.mean_iou) else round(self.mean_iou, 6),
            "num_matched": self.num_matched,
            "num_found": self.num_found,
            "num_true": self.num_true,
        }


def agree(
    found: NDArray[Any], truth: NDArray[Any], scores: Sequence[float] | None = None, *, least_iou: float = 0.5
) -> Agreement:
    """Match shapely polygons of one coordinate system; the surest first, each with the best that is free."""
    import shapely

    # people draw outlines that cross themselves, which have no common area with anything
    found, truth = (
        np.asarray(shapely.make_valid(each), object) if len(each) else each for each in (found, truth)
    )
    pairs: list[tuple[float, float, int, int]] = []
    if len(found) and len(truth):
        one, other = shapely.STRtree(truth).query(found, predicate="intersects")
        shared = shapely.area(shapely.intersection(found[one], truth[other]))
        iou = shared / (shapely.area(found)[one] + shapely.area(truth)[other] - shared)
        surest = np.zeros(len(found)) if scores is None else np.asarray(scores, float)
        pairs = sorted(
            zip((-surest[one]).tolist(), (-iou).tolist(), one.tolist(), other.tolist(), strict=True)
        )
    matched: dict[int, float] = {}
    taken: set[int] = set()
    for _, minus_iou, here, there in pairs:
        if -minus_iou >= least_iou and here not in matched and there not in taken:
            matched[here] = -minus_iou
            taken.add(there)
    mean = float(np.mean(list(matched.values()))) if matched else float("nan")
    return Agreement(len(matched), len(found), len(truth), mean)


def add(parts: Sequence[Agreement]) -> Agreement:
    """Add up the counts of several maps."""
    num = sum(each.num_matched for each in parts)
    total = sum(each.mean_iou * each.num_matched for each in parts if each.num_matched)
    return Agreement(
        num,
        sum(each.num_found for each in parts),
        sum(each.num_true for each in parts),
        total / num if num else float("nan"),
    )
