"""Places of a scene and how well each was predicted: the best, the ordinary and the worst are worth a look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.metrics.confusion import Counts, Scores, confusion
from outsize.tiles.window import Window

PLACE_PX = 256
RANKS = ("best", "median", "worst")
NUM_EACH = 3  # places kept of each rank


@dataclass(frozen=True)
class ScoredPlace:
    """A window of one scene and its scores."""

    scene: int  # its number among the scenes that are scored
    window: Window
    mean_iou: float
    accuracy: float
    num_px: int
    num_classes: int  # that are true of at least a hundredth of it

    def as_dict(self) -> dict[str, Any]:
        """Return what scores.json holds."""
        window = self.window
        return {
            "row": window.row,
            "col": window.col,
            "height": window.height,
            "width": window.width,
            "mean_iou": round(self.mean_iou, 6),
            "accuracy": round(self.accuracy, 6),
            "wrong": round(1 - self.accuracy, 6),
            "num_px": self.num_px,
        }


def count_places(
    truth: NDArray[np.uint8], predicted: NDArray[np.uint8], num_classes: int, window: Window
) -> Iterator[tuple[Window, Counts]]:
    """Yield the counts of each place of a window that starts at a multiple of PLACE_PX."""
    for row in range(0, window.height, PLACE_PX):
        for col in range(0, window.width, PLACE_PX):
            rows, cols = slice(row, row + PLACE_PX), slice(col, col + PLACE_PX)
            part = truth[rows, cols]
            place = Window(window.row + row, window.col + col, *part.shape)
            yield place, confusion(part, predicted[rows, cols], num_classes)


def score_place(scene: int, size: tuple[int, int], window: Window, counts: Counts) -> ScoredPlace | None:
    """Score a place; None where less than half of a whole place is counted, which says little."""
    num_px, whole_px = int(counts.sum()), min(PLACE_PX, size[0]) * min(PLACE_PX, size[1])
    if num_px == 0 or 2 * num_px < whole_px:
        return None
    mean_iou = Scores(("",) * len(counts), counts).mean_iou
    num_true = int(np.count_nonzero(100 * counts.sum(axis=1) >= num_px))
    return ScoredPlace(scene, window, mean_iou, float(np.trace(counts)) / num_px, num_px, num_true)


def pick_places(places: Sequence[ScoredPlace]) -> list[tuple[str, ScoredPlace]]:
    """Return the best, the median and the worst places by their shares of wrong pixels, with their ranks, none twice.

    A few stray pixels of a class that is not there halve a place's mean IoU, and nobody would call it bad for them.
    The best are chosen where there is something to tell apart: a calm sea that is all sea shows nothing.
    """
    ordered = sorted(places, key=lambda each: (-each.accuracy, -each.mean_iou, each.scene, each.window.row))
    if len(ordered) < 3:
        return [*zip(("best", "worst"), ordered, strict=False)]
    num = min(NUM_EACH, len(ordered) // 3)
    varied = [place for place in ordered if place.num_classes > 1]
    best = (varied if len(varied) >= 3 * num else ordered)[:num]
    worst = [place for place in reversed(ordered) if place not in best][:num]
    middle = (len(ordered) - 1) / 2
    left = [(abs(at - middle), place) for at, place in enumerate(ordered) if place not in (*best, *worst)]
    median = [place for _, place in sorted(left, key=lambda pair: pair[0])[:num]]
    return [
        (rank, place) for rank, found in zip(RANKS, (best, median, worst), strict=True) for place in found
    ]
