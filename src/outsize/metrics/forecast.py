"""Skill of forecasts, as counts for each lead and threshold that add up over windows, tiles and ranks.

                       rain came        no rain came         CSI   hits / (hits + misses + false alarms)
    rain forecast      hit              false alarm          POD   hits / (hits + misses)
    no rain forecast   miss             (correct)            FAR   false alarms / (hits + false alarms)
                                                             bias  (hits + false alarms) / (hits + misses)

FSS compares the share of wet pixels in squares around each pixel (Roberts and Lean, 2008): a forecast a few pixels off
is not wrong twice. 1 - sum (found - came)^2 / (sum found^2 + sum came^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.frames import Levels, known, to_levels, to_rain

FSS_PX = 9  # side of the squares of FSS
_BINS = 10  # of probability

Sums = NDArray[np.float64]


@dataclass(frozen=True)
class ForecastCounts:
    """What was counted of forecasts by one method."""

    hits: Sums  # lead, threshold
    misses: Sums
    false_alarms: Sums
    apart: Sums  # lead, threshold: sum of squared differences of shares
    largest: Sums  # and what that is at most
    error: Sums  # lead: sum of |found - came| in mm/h
    num_px: Sums  # lead: known pixels

    def __add__(self, other: ForecastCounts) -> ForecastCounts:
        """Count both."""
        return ForecastCounts(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )

    @property
    def csi(self) -> Sums:
        """Return hits as a share of all that was forecast or came (lead, threshold); NaN where there is none."""
        return _share(self.hits, self.hits + self.misses + self.false_alarms)

    @property
    def fss(self) -> Sums:
        """Return the fractions skill score (lead, threshold)."""
        return 1 - _share(self.apart, self.largest)

    def figures(self) -> dict[str, Sums]:
        """Return every score by its name: (lead, threshold), and mae (lead)."""
        forecast, came = self.hits + self.false_alarms, self.hits + self.misses
        return {
            "csi": self.csi,
            "pod": _share(self.hits, came),
            "far": _share(self.false_alarms, forecast),
            "bias": _share(forecast, came),
            "fss": self.fss,
            "mae": _share(self.error, self.num_px),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return every score as lists, null where there is none."""
        return {name: _listed(values) for name, values in self.figures().items()}


def no_counts(num_leads: int, num_thresholds: int) -> ForecastCounts:
    """Return what was counted of nothing."""
    hits, misses, false_alarms, apart, largest = (np.zeros((num_leads, num_thresholds)) for _ in range(5))
    error, num_px = (np.zeros(num_leads) for _ in range(2))
    return ForecastCounts(hits, misses, false_alarms, apart, largest, error, num_px)


def count_forecast(found: Levels, came: Levels, thresholds: Sequence[float]) -> ForecastCounts:
    """Count a forecast (lead, row, column) against what came; what is unknown in `found` is no rain."""
    from scipy.ndimage import uniform_filter

    is_known = known(came)
    counts = no_counts(len(came), len(thresholds))
    # thresholds as levels: both sides are rounded alike, and equal rain reaches an equal threshold
    for number, level in enumerate(to_levels(np.array(thresholds)).tolist()):
        for lead in range(len(came)):
            forecast, rains = (found[lead] >= level) & is_known[lead], (came[lead] >= level) & is_known[lead]
            hits = np.count_nonzero(forecast & rains)
            counts.hits[lead, number] = hits
            counts.misses[lead, number] = np.count_nonzero(rains) - hits
            counts.false_alarms[lead, number] = np.count_nonzero(forecast) - hits
            shares = [
                uniform_filter(each.astype(np.float32), FSS_PX, mode="constant") for each in (forecast, rains)
            ]
            counts.apart[lead, number] = np.square(shares[0] - shares[1]).sum(dtype=np.float64)
            counts.largest[lead, number] = sum(np.square(each).sum(dtype=np.float64) for each in shares)
    error = np.abs(np.nan_to_num(to_rain(found)) - np.nan_to_num(to_rain(came)))
    counts.error[:] = np.where(is_known, error, 0).sum(axis=(1, 2), dtype=np.float64)
    counts.num_px[:] = np.count_nonzero(is_known, axis=(1, 2))
    return counts


@dataclass(frozen=True)
class ReliabilityCounts:
    """How often it rained where a probability was forecast: in ten bins of it."""

    num: Sums  # bin: pixels
    said: Sums  # bin: sum of probabilities
    came: Sums  # bin: pixels where it rained

    def __add__(self, other: ReliabilityCounts) -> ReliabilityCounts:
        """Count both."""
        return ReliabilityCounts(self.num + other.num, self.said + other.said, self.came + other.came)

    def as_bins(self) -> list[dict[str, float]]:
        """Return the bins that have pixels: from, to, mean probability, and the share where it rained."""
        ends = np.linspace(0, 1, _BINS + 1)
        return [
            {
                "from": float(ends[each]),
                "to": float(ends[each + 1]),
                "confidence": float(self.said[each] / self.num[each]),
                "accuracy": float(self.came[each] / self.num[each]),
                "num_px": int(self.num[each]),
            }
            for each in range(_BINS)
            if self.num[each]
        ]

    @property
    def brier(self) -> float:
        """Return how far forecast and frequency are apart over all bins: the reliability part of Brier's score."""
        with np.errstate(invalid="ignore"):
            apart = np.nan_to_num(self.num * np.square((self.said - self.came) / self.num))
        return float(apart.sum() / max(1.0, self.num.sum()))


def no_reliability() -> ReliabilityCounts:
    """Return what was counted of nothing."""
    return ReliabilityCounts(*(np.zeros(_BINS) for _ in range(3)))


def count_reliability(probability: NDArray[np.floating], came: Levels, threshold: float) -> ReliabilityCounts:
    """Count probabilities (lead, row, column) of rain of a threshold against what came."""
    counted = known(came) & np.isfinite(probability)
    said = probability[counted].astype(np.float64)
    rains = came[counted] >= int(to_levels(np.array(threshold)))
    bins = np.minimum((said * _BINS).astype(int), _BINS - 1)
    sums = [np.bincount(bins, weights, _BINS) for weights in (None, said, rains.astype(np.float64))]
    return ReliabilityCounts(*(each.astype(np.float64) for each in sums))


def _share(part: Sums, whole: Sums) -> Sums:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def _listed(values: Sums) -> list[Any]:
    if values.ndim > 1:
        return [_listed(each) for each in values]
    return [None if np.isnan(each) else round(float(each), 6) for each in values]
