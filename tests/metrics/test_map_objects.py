"""Outlines on a map are matched one by one."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from outsize.metrics.map_objects import add, agree


def test_each_outline_has_one_partner_at_most() -> None:
    truth = np.array([shapely.box(0, 0, 10, 10), shapely.box(20, 0, 30, 10), shapely.box(40, 0, 50, 10)])
    found = np.array([shapely.box(0, 0, 10, 9), shapely.box(0, 0, 10, 10), shapely.box(20, 0, 30, 6)])
    result = agree(found, truth)
    assert (result.num_matched, result.num_found, result.num_true) == (2, 3, 3)
    assert result.f1 == pytest.approx(2 / 3)
    assert result.mean_iou == pytest.approx((1 + 0.6) / 2)


def test_too_little_overlap_is_none() -> None:
    truth, found = np.array([shapely.box(0, 0, 10, 10)]), np.array([shapely.box(0, 0, 10, 4.9)])
    assert agree(found, truth).f1 == 0
    assert agree(found, truth, least_iou=0.4).f1 == 1


def test_the_surer_goes_first() -> None:
    truth = np.array([shapely.box(0, 0, 10, 10)])
    found = np.array([shapely.box(0, 0, 10, 10), shapely.box(0, 0, 10, 8)])
    assert agree(found, truth, [0.3, 0.9]).mean_iou == pytest.approx(0.8)


def test_nothing_is_matched_with_nothing() -> None:
    none = np.empty(0, object)
    assert agree(none, none).f1 == 1
    assert agree(none, np.array([shapely.box(0, 0, 1, 1)])).as_dict()["precision"] is None


def test_maps_add_up() -> None:
    box = np.array([shapely.box(0, 0, 10, 10)])
    both = add([agree(box, box), agree(box, np.empty(0, object))])
    assert (both.f1, both.mean_iou) == (pytest.approx(2 / 3), pytest.approx(1.0))


def test_an_outline_that_crosses_itself_still_counts() -> None:
    crossed = np.array([shapely.Polygon([(0, 0), (10, 10), (10, 0), (0, 10)])])
    assert not shapely.is_valid(crossed).any()
    assert agree(crossed, np.array([shapely.box(0, 0, 10, 10)])).mean_iou == pytest.approx(0.5)
