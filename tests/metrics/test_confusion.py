"""Confusion counts and their scores against slow, plain versions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.metrics.confusion import Scores, confusion

_VALUES = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 254, 255]), st.sampled_from([0, 1, 2, 3, 255])))


@given(pairs=_VALUES)
def test_counts_and_scores_equal_a_loop(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = (np.array([pair[side] for pair in pairs], np.uint8) for side in (0, 1))
    counts = confusion(truth, predicted, 4)
    known = [(t, p) for t, p in pairs if t < 4 and p < 4]
    for t in range(4):
        for p in range(4):
            assert counts[t, p] == known.count((t, p))
    scores = Scores(("a", "b", "c", "d"), counts)
    for each in range(4):
        hits = known.count((each, each))
        true = sum(t == each for t, _ in known)
        found = sum(p == each for _, p in known)
        _same(scores.iou[each], hits, true + found - hits)
        _same(scores.accuracy[each], hits, true)
        _same(scores.f1[each], 2 * hits, true + found)
    table = scores.as_dict()
    assert json.loads(json.dumps(table, allow_nan=False)) == table
    assert table["num_px"] == len(known)
    if not known:
        assert table["mean_iou"] is table["weighted_iou"] is table["pixel_accuracy"] is None


def _same(value: float, top: int, bottom: int) -> None:
    assert math.isnan(value) if bottom == 0 else value == pytest.approx(top / bottom)


def test_a_class_absent_from_both_is_left_out_of_the_mean() -> None:
    counts = confusion(np.uint8([0, 0, 1, 1]), np.uint8([0, 0, 1, 0]), 3)
    scores = Scores(("a", "b", "absent"), counts)
    table = scores.as_dict()
    assert table["classes"]["absent"] == {"iou": None, "accuracy": None, "f1": None, "num_px": 0}
    assert table["mean_iou"] == pytest.approx((2 / 3 + 1 / 2) / 2, abs=1e-6)
    assert table["weighted_iou"] == pytest.approx((2 / 3 + 1 / 2) / 2, abs=1e-6)
    assert table["pixel_accuracy"] == 0.75


def test_a_class_predicted_where_it_is_not_scores_zero() -> None:
    scores = Scores(("a", "ghost"), confusion(np.uint8([0, 0]), np.uint8([0, 1]), 2))
    assert scores.iou.tolist() == [0.5, 0.0]
    assert scores.mean_iou == 0.25


def test_weighted_iou_weighs_by_true_pixels() -> None:
    counts = np.array([[90, 0], [5, 5]], np.int64)
    expected = 0.9 * 90 / 95 + 0.1 * 5 / 10
    assert Scores(("a", "b"), counts).as_dict()["weighted_iou"] == pytest.approx(expected, abs=1e-6)


def test_counts_of_windows_add_up() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 5, (2, 40, 50)).astype(np.uint8)
    whole = confusion(truth, predicted, 5)
    parts = confusion(truth[:17], predicted[:17], 5) + confusion(truth[17:], predicted[17:], 5)
    np.testing.assert_array_equal(whole, parts)
