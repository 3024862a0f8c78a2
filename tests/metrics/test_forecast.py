"""Skill of forecasts: from counts that add up."""

from __future__ import annotations

import numpy as np
import pytest

from outsize.data.frames import UNKNOWN, to_levels
from outsize.metrics.forecast import (
    ForecastCounts,
    count_forecast,
    count_reliability,
    no_counts,
    no_reliability,
)


def levels(rows: list[list[float]]) -> np.ndarray:
    return to_levels(np.array(rows, np.float64))[None]


def test_hits_misses_and_false_alarms() -> None:
    came = levels([[2, 2, 0, 0], [2, np.nan, 0, 7]])
    found = levels([[1, 0, 3, 0], [2, 9, 0, 7]])
    counts = count_forecast(found, came, (1.0, 5.0))
    assert counts.hits.tolist() == [[3, 1]]
    assert counts.misses.tolist() == [[1, 0]]
    assert counts.false_alarms.tolist() == [[1, 0]]
    scores = counts.as_dict()
    assert scores["csi"] == [[0.6, 1.0]]
    assert (scores["pod"][0][0], scores["far"][0][0], scores["bias"][0][0]) == (0.75, 0.25, 1.0)
    assert scores["mae"] == [pytest.approx((1 + 2 + 3) / 7, rel=5e-3)]
    unknown = np.full_like(found, UNKNOWN)
    assert count_forecast(unknown, came, (1.0,)).misses.tolist() == [[4]]  # no forecast is one of no rain


def test_fss_forgives_a_few_pixels() -> None:
    came, near, far = (np.zeros((1, 40, 40)) for _ in range(3))
    came[0, 10:16, 10:16] = near[0, 10:16, 12:18] = far[0, 30:36, 30:36] = 5
    exact, close, wrong = (
        count_forecast(to_levels(each), to_levels(came), (1.0,)) for each in (came, near, far)
    )
    assert float(exact.fss[0, 0]) == 1
    assert 0.8 < float(close.fss[0, 0]) < 1
    assert float(wrong.fss[0, 0]) == pytest.approx(0, abs=1e-6)
    assert float(close.csi[0, 0]) == 0.5


def test_counts_add_up() -> None:
    rng = np.random.default_rng(0)
    pairs = [to_levels(rng.exponential(2, (2, 3, 8, 8))) for _ in range(3)]
    total = no_counts(3, 2)
    for found, came in pairs:
        total += count_forecast(found, came, (1.0, 3.0))
    found, came = (np.concatenate([pair[side] for pair in pairs], axis=1) for side in (0, 1))
    whole = count_forecast(found, came, (1.0, 3.0))
    for name in ("hits", "misses", "false_alarms", "error", "num_px"):
        np.testing.assert_allclose(getattr(total, name), getattr(whole, name))
    assert isinstance(total, ForecastCounts)


def test_dry_everywhere_has_no_score() -> None:
    dry = np.zeros((1, 4, 4), np.int16)
    assert count_forecast(dry, dry, (1.0,)).as_dict()["csi"] == [[None]]


def test_reliability() -> None:
    rng = np.random.default_rng(1)
    said = rng.random((1, 200, 200))
    came = to_levels(np.where(rng.random(said.shape) < said, 2.0, 0.0))
    counted = no_reliability() + count_reliability(said, came, 1.0)
    bins = counted.as_bins()
    assert sum(each["num_px"] for each in bins) == said.size
    assert all(abs(each["confidence"] - each["accuracy"]) < 0.05 for each in bins)
    assert counted.brier < 1e-3
    assert count_reliability(said, np.zeros_like(came), 1.0).brier > 0.2
