"""Levels of rain: back and forth, what is unknown, thresholds."""

from __future__ import annotations

import numpy as np

from outsize.data.frames import UNKNOWN, known, to_levels, to_rain


def test_back_and_forth() -> None:
    rain = np.array([0, 0.1, 0.3, 1, 10, 100, 1000], np.float32)
    np.testing.assert_allclose(to_rain(to_levels(rain)), rain, rtol=5e-3)
    assert to_levels(rain).tolist() == [0, 182, 470, 1099, 3045, 5303, 7601]  # as the drawing says
    assert to_levels(rain).dtype == np.int16


def test_unknown_is_not_dry() -> None:
    levels = to_levels(np.array([np.nan, 0.0, -3.0]))
    assert levels.tolist() == [UNKNOWN, 0, 0]
    assert known(levels).tolist() == [False, True, True]
    assert np.isnan(to_rain(levels)).tolist() == [True, False, False]


def test_equal_rain_reaches_a_threshold() -> None:
    thresholds = np.array([0.3, 1.0, 2.1, 5.0, 9.9], np.float32)
    assert (to_levels(thresholds) >= to_levels(thresholds.astype(np.float64))).all()
