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
NUM_EACH = 3  # places kept of each rank


@dataclass(frozen=True)
class Place:
    """A window of one scene and its scores."""

    scene: int  # its number among the scenes that are scored
    window: Window
    mean_iou: float
    accuracy: float
    num_px: int

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


def score_place(scene: int, size: tuple[int, int], window: Window, counts: Counts) -> Place | None:
    """Score a place; None where less than half of a whole place is counted, which says little."""
    num_px, whole_px = int(counts.sum()), min(PLACE_PX, size[0]) * min(PLACE_PX, size[1])
    if num_px == 0 or 2 * num_px < whole_px:
        return None
    mean_iou = Scores(("",) * len(counts), counts).mean_iou
    return Place(scene, window, mean_iou, float(np.trace(counts)) / num_px, num_px)


def pick_places(places: Sequence[Place], num_each: int = NUM_EACH) -> list[tuple[str, Place]]:
    """Return the best, the median and the worst places with their ranks, none twice."""
    ordered = sorted(places, key=lambda each: (-each.mean_iou, -each.accuracy, each.scene, each.window.row))
    num = min(num_each, max(1, len(ordered) // 3))
    if len(ordered) < 3:
        return [*zip(("best", "worst"), ordered, strict=False)]
    middle = (len(ordered) - num) // 2
    ranks = {
        "best": ordered[:num],
        "median": ordered[middle : middle + num],
        "worst": ordered[: -num - 1 : -1],
    }
    return [(rank, place) for rank, found in ranks.items() for place in found]
