"""Whether a confidence can be believed: reliability diagram and expected calibration error, as counts that add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE = 250  # confidence 0..1 comes as a byte 0..250
NUM_BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Pixels, and those of them that are right, for each of the 251 values a confidence can have.

    Counts per value and not per bin: windows and scenes add up to the very figures of the whole.
    """

    num_px: NDArray[np.int64]
    hits: NDArray[np.int64]

    def __add__(self, other: Reliability) -> Reliability:
        return Reliability(self.num_px + other.num_px, self.hits + other.hits)

    @property
    def error(self) -> float:
        """Expected calibration error: the distance of accuracy from confidence, over bins weighted by pixels."""
        num_px, hits, confidence = self._bins()
        total = num_px.sum()
        return float(np.abs(hits - confidence).sum() / total) if total else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Return what scores.json holds; bins without pixels are left out."""
        num_px, hits, confidence = self._bins()
        bins = [
            {
                "from": round(number / NUM_BINS, 6),
                "to": round((number + 1) / NUM_BINS, 6),
                "num_px": int(num_px[number]),
                "confidence": round(float(confidence[number] / num_px[number]), 6),
                "accuracy": round(float(hits[number] / num_px[number]), 6),
            }
            for number in np.flatnonzero(num_px)
        ]
        return {"expected_calibration_error": _number(self.error), "num_px": int(num_px.sum()), "bins": bins}

    def _bins(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return pixels, hits and the sum of confidence of each bin."""
        values = np.arange(SCALE + 1)
        # integers: 1 belongs to the last bin, and no rounding decides at an edge
        numbers = np.minimum(values * NUM_BINS // SCALE, NUM_BINS - 1)
        weights = (self.num_px, self.hits, self.num_px * (values / SCALE))
        num_px, hits, confidence = (
            np.bincount(numbers, each, NUM_BINS).astype(np.float64) for each in weights
        )
        return num_px, hits, confidence


def no_pixels() -> Reliability:
    """Return the counts of nothing, to be added to."""
    zeros = np.zeros(SCALE + 1, np.int64)
    return Reliability(zeros, zeros)


def reliability(confidence: NDArray[np.uint8], is_right: NDArray[np.bool_]) -> Reliability:
    """Count pixels by confidence; values above SCALE (nodata) are left out."""
    known = confidence <= SCALE
    num_px = np.bincount(confidence[known], minlength=SCALE + 1)
    hits = np.bincount(confidence[known & is_right], minlength=SCALE + 1)
    return Reliability(num_px, hits)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)
