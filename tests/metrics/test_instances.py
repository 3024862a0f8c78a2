"""Average precision is that of the official evaluator, and right where it can be told by hand."""

from __future__ import annotations

import numpy as np
import pytest

from outsize.data.object import Object, make_object
from outsize.errors import RunError
from outsize.metrics import coco_check
from outsize.metrics.instances import Pictured, average_precision
from outsize.tiles.window import Window


def block(row: int, col: int, height: int, width: int, class_id: int = 0, score: float = 1.0) -> Object:
    return Object(class_id, Window(row, col, height, width), np.ones((height, width), np.bool_), score)


def test_all_found_is_one_and_nothing_found_is_zero() -> None:
    truth = [block(0, 0, 10, 10), block(20, 20, 10, 10)]
    assert average_precision([Pictured(truth, truth)], 1).ap == pytest.approx(1.0)
    assert average_precision([Pictured(truth, [])], 1).ap == 0.0
    assert average_precision([Pictured(truth, [])], 1).as_dict(["a"])["ap50"] == 0.0
    assert average_precision([Pictured([], [])], 1).as_dict(["a"])["ap"] is None


def test_a_miss_before_a_hit_costs_half() -> None:
    truth = [block(0, 0, 10, 10)]
    found = [block(50, 50, 10, 10, score=0.9), block(0, 0, 10, 10, score=0.5)]
    assert average_precision([Pictured(truth, found)], 1).ap == pytest.approx(0.5)
    assert average_precision([Pictured(truth, found[::-1])], 1).ap == pytest.approx(0.5)


def test_a_true_object_is_found_once_only() -> None:
    truth = [block(0, 0, 10, 10), block(50, 50, 10, 10)]
    found = [block(0, 0, 10, 10, score=0.9), block(0, 0, 10, 9, score=0.8), block(50, 50, 10, 10, score=0.7)]
    assert average_precision([Pictured(truth, found)], 1).ap50 == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_the_threshold_counts() -> None:
    truth, found = [block(0, 0, 10, 10)], [block(0, 0, 10, 7)]
    scores = average_precision([Pictured(truth, found)], 1)
    assert (scores.ap50, scores.ap) == (pytest.approx(1.0), pytest.approx(0.5))


def test_places_that_nobody_knows_do_not_count() -> None:
    truth = [block(0, 0, 10, 10), block(40, 40, 40, 40, class_id=-1)]
    found = [block(50, 50, 9, 9, score=0.9), block(60, 60, 9, 9, score=0.8), block(0, 0, 10, 10, score=0.5)]
    assert average_precision([Pictured(truth, found)], 1).ap == pytest.approx(1.0)


def test_sizes_are_at_a_stated_scale() -> None:
    truth = [block(0, 0, 20, 20)]
    there = average_precision([Pictured(truth, truth)], 1).as_dict(["a"])
    assert (there["ap_small"], there["ap_medium"], there["size_scale"]) == (1.0, None, 1.0)
    larger = average_precision([Pictured(truth, truth)], 1, scale=4.0).as_dict(["a"])
    assert (larger["ap_small"], larger["ap_medium"], larger["size_scale"]) == (None, 1.0, 4.0)


def test_masks_and_boxes_differ() -> None:
    ring = np.ones((10, 10), np.bool_)
    ring[1:-1, 1:-1] = False
    truth, found = [Object(0, Window(0, 0, 10, 10), ring)], [block(0, 0, 10, 10)]
    assert average_precision([Pictured(truth, found)], 1, kind="box").ap == pytest.approx(1.0)
    assert average_precision([Pictured(truth, found)], 1, kind="mask").ap == 0.0


def _chance_pictures() -> list[Pictured]:
    chance = np.random.default_rng(7)
    pictures = []
    for _ in range(6):
        truth, found = [], []
        for _ in range(12):
            row, col = chance.integers(0, 150, 2)
            height, width = chance.integers(4, 50, 2)
            mask = chance.random((height, width)) < 0.9
            class_id = int(chance.integers(3))
            one = make_object(class_id, Window(int(row), int(col), int(height), int(width)), mask)
            assert one is not None
            truth.append(one)
            if chance.random() < 0.8:
                moved = Window(
                    int(row + chance.integers(0, 4)),
                    int(col + chance.integers(0, 4)),
                    int(height),
                    int(width),
                )
                score = round(float(chance.random()), 3)
                guess = class_id if chance.random() < 0.9 else int(chance.integers(3))
                other = make_object(guess, moved, mask ^ (chance.random(mask.shape) < 0.05), score=score)
                assert other is not None
                found.append(other)
        pictures.append(Pictured(truth, found))
    return pictures


def test_figures_are_those_of_the_official_evaluator() -> None:
    pytest.importorskip("faster_coco_eval")
    pytest.importorskip("torchmetrics")
    pictures = _chance_pictures()
    mask, box = (average_precision(pictures, 3, kind=kind) for kind in ("mask", "box"))
    official = coco_check.official_scores(pictures, [(210, 210)] * len(pictures), mask.most)
    own = {"ap": mask.ap, "ap50": mask.ap50, "box_ap": box.ap, "box_ap50": box.ap50}
    assert 0.1 < own["ap"] < 0.9
    for name, figure in own.items():
        assert figure == pytest.approx(official[name], abs=1e-6), name


def test_without_the_official_evaluator_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco_check.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"outsize\[coco\]"):
        coco_check.official_scores([], [], 100)
