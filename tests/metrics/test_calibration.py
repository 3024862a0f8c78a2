"""Reliability: counts that add up, and the error that follows from them."""

from __future__ import annotations

import numpy as np
import pytest

from outsize.metrics.calibration import NUM_BINS, SCALE, no_pixels, reliability


def test_error_equals_that_of_plain_arithmetic() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.integers(0, SCALE + 1, 5000).astype(np.uint8)
    is_right = rng.random(5000) < confidence / 300
    shares = confidence / SCALE
    numbers = np.minimum((shares * NUM_BINS + 1e-9).astype(int), NUM_BINS - 1)
    expected = sum(
        (numbers == bin_).mean() * abs(is_right[numbers == bin_].mean() - shares[numbers == bin_].mean())
        for bin_ in range(NUM_BINS)
    )
    found = reliability(confidence, is_right)
    assert found.error == pytest.approx(expected, abs=1e-12)
    table = found.as_dict()
    assert table["expected_calibration_error"] == pytest.approx(expected, abs=1e-6)
    assert table["num_px"] == sum(each["num_px"] for each in table["bins"]) == 5000


def test_parts_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.integers(0, 256, (40, 50)).astype(np.uint8)
    is_right = rng.random((40, 50)) < 0.5
    parts = [reliability(confidence[part], is_right[part]) for part in (slice(0, 13), slice(13, 40))]
    assert sum(parts, no_pixels()).as_dict() == reliability(confidence, is_right).as_dict()


def test_a_model_that_knows_itself_has_no_error() -> None:
    confidence = np.repeat(np.uint8([125, 250]), [100, 50])
    is_right = np.r_[np.arange(100) % 2 == 0, np.ones(50, bool)]
    assert reliability(confidence, is_right).error == 0.0
    assert reliability(confidence, ~is_right).error == pytest.approx(1 / 3)


def test_nodata_is_left_out_and_full_confidence_is_in_the_last_bin() -> None:
    table = reliability(np.uint8([250, 255, 255]), np.array([True, True, False])).as_dict()
    (only,) = table["bins"]
    assert (only["num_px"], only["confidence"], only["accuracy"], only["to"]) == (1, 1.0, 1.0, 1.0)


def test_nothing_counted_has_no_error() -> None:
    assert no_pixels().as_dict() == {"expected_calibration_error": None, "num_px": 0, "bins": []}
