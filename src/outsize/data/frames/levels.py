"""Rain as whole numbers that a network learns well: logarithms, with "no data" apart from "no rain".

    rain (mm/h)    unknown     0     0.1    0.5      1      10     100
    level            -1000     0     182    693   1099    3045    5303      round(1000 ln(1 + rain / 0.5))

Heavy rain is rare and a hundred times what is common: on a scale of its own it would be all that a loss sees. Whole
numbers of 16 bits are half of what floats take on disk, in memory and on their way to a GPU, and lose a tenth of a
percent. Thresholds are compared as levels, so that rain of exactly 1 mm/h reaches 1 mm/h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1000
SCALE = 1000.0  # levels of a unit of the logarithm
KNEE_MM_H = 0.5  # below, a level is as good as proportional to rain; above, to its logarithm
_MOST = 2**15 - 1

Levels = NDArray[np.int16]
Rain = NDArray[np.float32]  # mm/h; NaN: unknown


def to_levels(rain: NDArray[Any]) -> Levels:
    """Turn rain (mm/h) into levels; NaN is unknown, and below 0 there is no rain."""
    known = np.nan_to_num(rain, nan=0.0, posinf=0.0, neginf=0.0).clip(min=0)
    levels = np.rint(SCALE * np.log1p(known / KNEE_MM_H)).clip(max=_MOST).astype(np.int16)
    return np.where(np.isfinite(rain), levels, np.int16(UNKNOWN))


def to_rain(levels: NDArray[Any]) -> Rain:
    """Turn levels into rain (mm/h), NaN where it is unknown."""
    rain = KNEE_MM_H * np.expm1(levels.astype(np.float32) / np.float32(SCALE))
    return np.where(levels > UNKNOWN / 2, rain.clip(min=0), np.float32(np.nan)).astype(np.float32)


def known(levels: NDArray[Any]) -> NDArray[np.bool_]:
    """Say where rain is known."""
    return levels > UNKNOWN / 2
