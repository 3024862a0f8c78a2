"""Boxes are arrays of one length, and know their sides."""

from __future__ import annotations

import numpy as np
import pytest

from outsize.data.boxes import gather, no_boxes, overlaps


def test_what_is_not_told_is_an_object_easily_seen() -> None:
    boxes = gather([[10, 20, 30, 60]], ["Car"])
    assert (boxes.heights_px[0], boxes.widths_px[0], boxes.areas_px[0]) == (40, 20, 800)
    assert (boxes.scores[0], boxes.truncated[0], boxes.occluded[0]) == (1, 0, 0)
    assert not boxes.have_angles
    assert gather([[10, 20, 30, 60]], ["Car"], alphas=[0.5]).have_angles


def test_some_of_them_keep_all_that_is_known() -> None:
    boxes = gather([[0, 0, 1, 1], [5, 5, 9, 9]], ["Car", "Van"], scores=[0.1, 0.9], occluded=[0, 2])
    some = boxes.take(boxes.scores > 0.5)
    assert (len(some), some.labels.tolist(), some.occluded.tolist()) == (1, ["Van"], [2])
    assert len(no_boxes()) == 0


def test_what_no_box_has_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        gather([[0, 0, 1, 1]], ["Car"], colour=["red"])


def test_common_area_is_of_one_with_one() -> None:
    one = np.array([[0.0, 0, 10, 10], [0, 0, 10, 10]])
    assert overlaps(one, np.array([[5.0, 5, 20, 20], [10, 0, 20, 10]])).tolist() == [25, 0]
