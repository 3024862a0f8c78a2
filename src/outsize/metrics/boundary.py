"""Boundary F: how well the outlines of classes are met, in the two published definitions.

For one class of one picture, both outlines being sets of pixels:

    precision = share of the predicted outline that lies within a tolerance of the true one
    recall    = share of the true outline that lies within it of the predicted one
    F         = 2 precision recall / (precision + recall), 0 where one of the two outlines is empty

                      by the diagonal                             by pixels
    outline           pixels of the class beside one that is not  pixels unlike the next right, below or both
    tolerance         0.75 % of the diagonal                      2, 5, 9 and 12 px
    neither has one   left out                                    F = 1, as if it had been met
    mean              over the classes of a picture, then         over pictures, then
                      over pictures                               over classes

Distances are Euclidean, between middles of pixels. Pixels that are not labelled or not predicted belong to no class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.metrics.outlines import MAX_BITS, as_bits, count_bits, edge_outline, inner_outline, spread
from outsize.tiles.window import Window

PIXELS = (2, 5, 9, 12)  # tolerances of the definition by pixels
LARGEST_PX = (
    64  # tolerance by the diagonal that is still sought; that of a scene of a whole town says nothing
)
_NOBODY = 255  # a value that is no class
_CPU_STRIP_PX = 2**18  # what is worked on stays in the cache of a core
_GPU_STRIP_PX = 2**23


@dataclass(frozen=True)
class Tolerances:
    """How far apart outlines of one picture may lie, as squares of pixels: whole numbers, no rounding decides."""

    diagonal: int | None  # None: not by the diagonal
    pixels: tuple[int, ...] = tuple(px * px for px in PIXELS)

    @property
    def margin_px(self) -> int:
        """How much of the surroundings decides about a pixel: the farthest outline and the pixel beside it."""
        return isqrt(max((self.diagonal or 0, *self.pixels))) + 1


def tolerances_for(sizes: Sequence[tuple[int, int]]) -> list[Tolerances]:
    """Return those of each picture (height, width); by the diagonal only where no picture is too large for it."""
    # 0.0075 = 3 / 400: 960 x 720 px have a diagonal of 1200 and a tolerance of exactly 9
    squares = [9 * (height * height + width * width) // 160_000 for height, width in sizes]
    small = all(square <= LARGEST_PX * LARGEST_PX for square in squares)
    return [Tolerances(square if small else None) for square in squares]


@dataclass(frozen=True)
class OutlineCounts:
    """Pixels of outlines in one picture, or in one window of it: windows add up to the figures of the whole.

    The last axis: predicted, those of them near the true outline, true, those of them near the predicted one.
    """

    diagonal: NDArray[np.int64] | None  # class, 4
    pixels: NDArray[np.int64]  # tolerance, class, 4

    def __add__(self, other: OutlineCounts) -> OutlineCounts:
        both = (self.diagonal, other.diagonal)
        diagonal = None if both[0] is None or both[1] is None else both[0] + both[1]
        return OutlineCounts(diagonal, self.pixels + other.pixels)


def no_outlines(num_classes: int, tolerances: Tolerances) -> OutlineCounts:
    """Return the counts of nothing, to be added to."""
    zeros = np.zeros((1 + len(tolerances.pixels), num_classes, 4), np.int64)
    return OutlineCounts(None if tolerances.diagonal is None else zeros[0], zeros[1:])


def count_outlines(
    truth: Tensor,
    predicted: Tensor,
    num_classes: int,
    tolerances: Tolerances,
    *,
    core: Window | None = None,
    counted: Tensor | None = None,
) -> OutlineCounts:
    """Count outlines in maps of bytes (row, column) on any device; values outside the classes are no class.

    Only pixels of the window `core` count, and of those only where `counted`, which is as large, says so. The maps
    reach `tolerances.margin_px` beyond the core, or to the border of the picture.
    """
    core = core or Window(0, 0, *truth.shape)
    total = no_outlines(num_classes, tolerances)
    present = _present(truth, num_classes) | _present(predicted, num_classes)
    classes = torch.nonzero(present).flatten().tolist()
    strip_px = _CPU_STRIP_PX if truth.device.type == "cpu" else _GPU_STRIP_PX
    num_rows = max(tolerances.margin_px, strip_px // max(1, truth.shape[1]))
    for row in range(core.row, core.row_end, num_rows):
        strip = Window(row, core.col, min(num_rows, core.row_end - row), core.width)
        first, last = max(0, row - tolerances.margin_px), strip.row_end + tolerances.margin_px
        maps = _known(truth[first:last], predicted[first:last], num_classes)
        here = strip.within(Window(first, 0, 0, 0))
        mask = None if counted is None else counted[row - core.row : strip.row_end - core.row]
        for at in range(0, len(classes), MAX_BITS):
            group = classes[at : at + MAX_BITS]
            bits = [as_bits(each, group) for each in maps]
            pixels = _count(edge_outline, bits, tolerances.pixels, len(group), here, mask)
            total.pixels[:, group] += pixels
            if tolerances.diagonal is not None and total.diagonal is not None:
                found = _count(inner_outline, bits, (tolerances.diagonal,), len(group), here, mask)
                total.diagonal[group] += found[0]
    return total


def _present(classes: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(classes.flatten(), minlength=256)[:num_classes] > 0


def _known(truth: Tensor, predicted: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Take from both maps what one of them does not know."""
    unknown = (truth >= num_classes) | (predicted >= num_classes)
    return truth.masked_fill(unknown, _NOBODY), predicted.masked_fill(unknown, _NOBODY)


def _count(
    outline: Callable[[Tensor], Tensor],
    bits: Sequence[Tensor],
    squares: Sequence[int],
    num_bits: int,
    core: Window,
    counted: Tensor | None,
) -> NDArray[np.int64]:
    """Return counts (tolerance, class, 4) of the core."""
    truth, predicted = (outline(each) for each in bits)
    columns = []
    for here, there in ((predicted, truth), (truth, predicted)):
        inside = here[core.slices]
        inside = (inside if counted is None else inside.masked_fill(~counted, 0)).flatten()
        points = torch.nonzero(inside).flatten()
        values = inside.index_select(0, points)
        num_points = count_bits(values, num_bits)
        near = [
            count_bits(disc[:, core.slices[1]].flatten().index_select(0, points) & values, num_bits)
            for disc in spread(there, squares, core.row, core.row_end)
        ]
        columns += [num_points.expand(len(squares), -1), torch.stack(near)]
    return torch.stack(columns, dim=-1).cpu().numpy()


@dataclass(frozen=True)
class BoundaryScores:
    """Boundary F of several pictures."""

    class_names: tuple[str, ...]
    pictures: Sequence[OutlineCounts]

    def of_pictures(self) -> list[float]:
        """Return the mean over the classes of each picture, by the diagonal; NaN where there is none."""
        return [_mean(_scores(each.diagonal)) for each in self.pictures if each.diagonal is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return what scores.json holds; NaN becomes null."""
        by_pixels = _scores(np.stack([each.pixels for each in self.pictures]))  # picture, tolerance, class
        found: dict[str, Any] = {"pixels": {}}
        for number, px in enumerate(PIXELS):
            scores = by_pixels[:, number]
            published = np.where(np.isnan(scores), 1.0, scores).mean(0)
            found["pixels"][str(px)] = {
                "mean": _number(float(published.mean())),
                "mean_where_present": _number(_mean(_means(scores))),
                "classes": self._named(published),
            }
        diagonals = [each.diagonal for each in self.pictures if each.diagonal is not None]
        if len(diagonals) == len(self.pictures):
            scores = _scores(np.stack(diagonals))
            found["diagonal"] = {
                "mean": _number(_mean(np.array(self.of_pictures()))),
                "classes": self._named(_means(scores)),
            }
        return found

    def _named(self, values: NDArray[np.float64]) -> dict[str, float | None]:
        return {name: _number(float(value)) for name, value in zip(self.class_names, values, strict=True)}


def _scores(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return F of each (predicted, near, true, near); NaN where neither outline has a pixel."""
    num_predicted, near_true, num_true, near_predicted = np.moveaxis(counts, -1, 0)
    precision, recall = near_true / np.maximum(num_predicted, 1), near_predicted / np.maximum(num_true, 1)
    total = precision + recall
    score = 2 * precision * recall / np.where(total > 0, total, 1)
    return np.where((num_predicted > 0) | (num_true > 0), score, np.nan)


def _means(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each class over the pictures in which it has an outline."""
    return np.array([_mean(each) for each in scores.T])


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)
