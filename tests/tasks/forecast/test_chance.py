"""Probabilities learnt from outcomes."""

from __future__ import annotations

import numpy as np

from outsize.data.frames import to_levels
from outsize.tasks.forecast.chance import Chances, chances_from, count_outcomes, fit_chances


def test_a_curve_is_found_again() -> None:
    rng = np.random.default_rng(0)
    found = rng.integers(0, 4000, (2, 300, 300)).astype(np.int16)
    true = Chances(1.0, (0.3, -0.4), (2.0, 1.0))
    came = to_levels(np.where(rng.random(found.shape) < true.of(found), 3.0, 0.0))
    fitted = fit_chances(count_outcomes(found, came, 1.0), 1.0)
    np.testing.assert_allclose(fitted.offsets, true.offsets, atol=0.1)
    np.testing.assert_allclose(fitted.slopes, true.slopes, atol=0.1)
    assert chances_from(fitted.as_dict()) == fitted


def test_counts_add_up_and_nothing_seen_is_no_certainty() -> None:
    found = np.full((1, 4, 4), 2000, np.int16)
    counts = count_outcomes(found, found, 1.0)
    assert counts.sum() == 16
    np.testing.assert_array_equal(counts + counts, 2 * counts)
    sure = fit_chances(1000 * counts, 1.0).of(np.array([[[0, 2000, 4000]]], np.int16))[0, 0]
    assert sure[0] <= sure[1] <= sure[2]
    nothing = fit_chances(np.zeros_like(counts), 1.0).of(found)
    assert 0.05 < float(nothing[0, 0, 0]) < 0.95
