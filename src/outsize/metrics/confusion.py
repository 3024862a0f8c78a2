"""Confusion matrix of a class map, and every score that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def confusion(truth: NDArray[np.uint8], predicted: NDArray[np.uint8], num_classes: int) -> Counts:
    """Count pixels by (true class, predicted class); values outside the classes are left out."""
    both = (truth < num_classes) & (predicted < num_classes)
    pairs = truth[both].astype(np.int64) * num_classes + predicted[both]
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


@dataclass(frozen=True)
class Scores:
    """Scores per class and over all; a class absent from truth and prediction scores NaN and is left out.

    `unanswered` are pixels of each true class that no class was predicted for: each is wrong.
    """

    class_names: tuple[str, ...]
    counts: Counts
    unanswered: Counts | int = 0

    @property
    def iou(self) -> NDArray[np.float64]:
        """Intersection over union per class."""
        return _ratio(self._hits, self._true + self._predicted - self._hits)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Share of each class's pixels that were found."""
        return _ratio(self._hits, self._true)

    @property
    def precision(self) -> NDArray[np.float64]:
        """Share of what was predicted of each class that is of it."""
        return _ratio(self._hits, self._predicted)

    @property
    def f1(self) -> NDArray[np.float64]:
        """Harmonic mean of precision and recall per class."""
        return _ratio(2 * self._hits, self._true + self._predicted)

    @property
    def mean_iou(self) -> float:
        """Mean of the classes' IoU."""
        return _mean(self.iou)

    @property
    def share_right(self) -> float:
        """Share of all that is right."""
        return float(_ratio(self._hits.sum(), self._true.sum()))

    @property
    def mean_f1(self) -> float:
        """Mean of the classes' F1."""
        return _mean(self.f1)

    def as_dict(self) -> dict[str, Any]:
        """Return what scores.json holds; NaN becomes null."""
        weights = _ratio(self._true, self._true.sum())
        present = self._true > 0
        weighted_iou = float((weights * self.iou)[present].sum()) if present.any() else float("nan")
        table = zip(self.class_names, self.iou, self.accuracy, self.f1, self._true, strict=True)
        return {
            "mean_iou": _number(self.mean_iou),
            "weighted_iou": _number(weighted_iou),
            "pixel_accuracy": _number(self.share_right),
            "mean_accuracy": _number(_mean(self.accuracy)),
            "mean_f1": _number(self.mean_f1),
            "num_px": int(self._true.sum()),
            "classes": {
                name: {
                    "iou": _number(iou),
                    "accuracy": _number(acc),
                    "f1": _number(f1),
                    "num_px": int(num_px),
                }
                for name, iou, acc, f1, num_px in table
            },
            "confusion": self.counts.tolist(),
        }

    @property
    def _hits(self) -> Counts:
        return np.diagonal(self.counts).copy()

    @property
    def _true(self) -> Counts:
        return np.asarray(self.counts.sum(axis=1) + self.unanswered)

    @property
    def _predicted(self) -> Counts:
        return np.asarray(self.counts.sum(axis=0))


def _ratio(top: Any, bottom: Any) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.divide(top, bottom, dtype=np.float64))


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
