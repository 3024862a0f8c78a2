"""How likely rain of a threshold is where a model forecasts so much: learnt from forecasts whose truth is known.

A forecast is one number, and how far it may be off depends on the lead. So for each lead a curve is fitted to all
pixels of the windows held back for validation,

    P(rain >= threshold) = 1 / (1 + exp(-(a + b * (forecast - threshold))))         in units of the logarithm

from counts of forecasts in small steps: they add up, however many pixels there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.frames import SCALE, Levels, known, to_levels

_STEP, _NUM = 50, 130  # levels of a step, and steps: up to 330 mm/h
_ROUNDS = 40
_LEAST_SLOPE = 0.05  # a forecast of more rain is never taken for less


@dataclass(frozen=True)
class Chances:
    """A curve for each lead."""

    threshold: float  # mm/h
    offsets: tuple[float, ...]
    slopes: tuple[float, ...]

    def of(self, found: Levels) -> NDArray[np.float32]:
        """Return the probability of rain of the threshold (lead, row, column)."""
        made = np.empty(found.shape, np.float32)
        for lead, (offset, slope) in enumerate(zip(self.offsets, self.slopes, strict=True)):
            made[lead] = _curve(offset, slope, _from(found[lead].clip(min=0), self.threshold))
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return what a file keeps of it."""
        return {"threshold": self.threshold, "offsets": list(self.offsets), "slopes": list(self.slopes)}


def chances_from(tree: Any) -> Chances:
    """Return what a file has kept."""
    offsets, slopes = (tuple(map(float, tree[name])) for name in ("offsets", "slopes"))
    return Chances(float(tree["threshold"]), offsets, slopes)


def count_outcomes(found: Levels, came: Levels, threshold: float) -> NDArray[np.int64]:
    """Count pixels by what was forecast and whether rain of the threshold came (lead, step, came)."""
    counts = np.zeros((len(found), _NUM, 2), np.int64)
    level = int(to_levels(np.array(threshold)))
    for lead in range(len(found)):
        is_known = known(came[lead])
        steps = np.minimum(found[lead][is_known].clip(min=0) // _STEP, _NUM - 1).astype(np.int64)
        rains = (came[lead][is_known] >= level).astype(np.int64)
        counts[lead] = np.bincount(2 * steps + rains, minlength=2 * _NUM).reshape(_NUM, 2)
    return counts


def fit_chances(counts: NDArray[np.int64], threshold: float) -> Chances:
    """Fit the curve of each lead to counts of outcomes, by Newton's method."""
    middles = _from((np.arange(_NUM) + 0.5) * _STEP, threshold)
    curves = [_fitted(middles, each.sum(1).astype(float), each[:, 1].astype(float)) for each in counts]
    return Chances(threshold, tuple(offset for offset, _ in curves), tuple(slope for _, slope in curves))


def _fitted(
    x: NDArray[np.float64], num: NDArray[np.float64], came: NDArray[np.float64]
) -> tuple[float, float]:
    # one pixel that came and one that did not, at either end: a curve that is no step, whatever was seen
    num, came = num + 0.01, came + 0.005
    offset, slope = 0.0, 1.0
    for _ in range(_ROUNDS):
        share = _curve(offset, slope, x)
        gradient = np.array([(came - num * share).sum(), (x * (came - num * share)).sum()])
        weight = np.maximum(num * share * (1 - share), 1e-9)
        curvature = np.array(
            [[weight.sum(), (weight * x).sum()], [(weight * x).sum(), (weight * x * x).sum()]]
        )
        step = np.linalg.solve(curvature + 1e-6 * np.eye(2), gradient)
        step *= min(1.0, 1.0 / float(np.abs(step).max()))
        offset, slope = offset + float(step[0]), max(_LEAST_SLOPE, slope + float(step[1]))
        if np.abs(step).max() < 1e-6:
            break
    return offset, slope


def _curve(offset: float, slope: float, x: NDArray[Any]) -> NDArray[Any]:
    made: NDArray[Any] = 1 / (1 + np.exp(-np.clip(offset + slope * x, -30, 30)))
    return made


def _from(levels: NDArray[Any], threshold: float) -> NDArray[np.float64]:
    """Return how far levels are above a threshold, in units of the logarithm."""
    return (levels - float(to_levels(np.array(threshold)))) / SCALE
