"""Units of rain: what brings the numbers of a file to mm/h, from what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError, explain

_RATES = {"mm/h": 1.0, "mm h-1": 1.0, "mm/hr": 1.0, "mm hr-1": 1.0, "mm hour-1": 1.0, "kg m-2 h-1": 1.0}
_RATES |= {"kg m-2 s-1": 3600.0, "mm s-1": 3600.0, "mm/s": 3600.0, "m s-1": 3.6e6}
_SUMS = {"mm": 1.0, "kg m-2": 1.0, "kg/m2": 1.0, "m": 1000.0}
_REFLECTIVITY = ("dbz", "decibel")
_LEAST_DBZ = 7.0  # below, no rain reaches the ground that anybody measures there

ToRain = Callable[[NDArray[np.float32]], NDArray[np.float32]]
UNITS = (*_RATES, *_SUMS, "dBZ")


def to_mm_h(path: Path, unit: str, summed_s: int) -> ToRain:
    """Return what turns numbers of a unit into mm/h; sums are those of so many seconds.

    Rain below 0 is no rain and none that was measured: it is unknown.
    """
    key = " ".join(unit.replace("**", "").replace("^", "").split()).lower()
    if key in _REFLECTIVITY:
        return _of_reflectivity
    factor = _RATES.get(key)
    if factor is None and key in _SUMS:
        factor = _SUMS[key] * 3600 / summed_s
    if factor is None:
        need, remedy = f"one of {', '.join(UNITS)}", "set data.frames.unit"
        raise DataError(explain(f"{path} holds rain of a unit that is not known", repr(unit), need, remedy))
    by = np.float32(factor)
    return lambda values: np.where(values >= 0, values * by, np.float32(np.nan))


def _of_reflectivity(dbz: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn reflectivity into rain by Marshall and Palmer's Z = 200 R^1.6."""
    with np.errstate(over="ignore"):  # counts that stand for nothing may be any number
        rain = (10.0 ** (dbz / 10.0) / 200.0) ** (1 / 1.6)
    return np.where(dbz < _LEAST_DBZ, np.float32(0), rain.astype(np.float32))
