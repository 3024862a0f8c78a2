"""Places: counts that part the window, and a choice of best, median and worst."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outsize.metrics.confusion import confusion
from outsize.tasks.segment.scores.places import PLACE_PX, ScoredPlace, count_places, pick_places, score_place
from outsize.tiles.window import Window


def test_places_part_the_window() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 4, (2, 300, 600)).astype(np.uint8)
    found = list(count_places(truth, predicted, 3, Window(2048, 4096, 300, 600)))
    assert [place for place, _ in found] == [
        Window(2048 + row, 4096 + col, min(PLACE_PX, 300 - row), min(PLACE_PX, 600 - col))
        for row in (0, 256)
        for col in (0, 256, 512)
    ]
    np.testing.assert_array_equal(sum(counts for _, counts in found), confusion(truth, predicted, 3))


@pytest.mark.parametrize(
    ("num_px", "size", "counts"), [(32768, (900, 900), True), (32767, (900, 900), False)]
)
def test_half_of_a_place_must_be_counted(num_px: int, size: tuple[int, int], counts: bool) -> None:
    window = Window(0, 0, PLACE_PX, PLACE_PX)
    assert (score_place(0, size, window, np.array([[num_px, 0], [0, 0]])) is not None) == counts


def test_a_picture_smaller_than_a_place_is_one() -> None:
    place = score_place(3, (40, 50), Window(0, 0, 40, 50), np.array([[600, 200], [0, 400]]))
    assert place is not None
    assert place.accuracy == pytest.approx(1000 / 1200)
    assert place.mean_iou == pytest.approx((600 / 800 + 400 / 600) / 2)
    assert place.scene == 3
    assert score_place(0, (40, 50), Window(0, 0, 40, 50), np.zeros((2, 2), int)) is None


def _places(num: int) -> list[ScoredPlace]:
    scores = np.random.default_rng(num).permutation(num) / 100
    return [
        ScoredPlace(0, Window(index, 0, 1, 1), 0.5, float(score), 1, 2) for index, score in enumerate(scores)
    ]


@pytest.mark.parametrize("num", [3, 5, 9, 10, 60])
def test_best_median_and_worst_none_twice(num: int) -> None:
    picked = pick_places(_places(num))
    assert len({place.window for _, place in picked}) == len(picked)
    by_rank = {
        rank: [round(place.accuracy * 100) for each, place in picked if each == rank]
        for rank in ("best", "median", "worst")
    }
    num_each = min(3, num // 3)
    assert by_rank["best"] == list(range(num - 1, num - 1 - num_each, -1))
    assert by_rank["worst"] == list(range(num_each))
    assert len(by_rank["median"]) == num_each
    assert np.mean(by_rank["median"]) == pytest.approx((num - 1) / 2, abs=0.51)


def test_few_places() -> None:
    assert pick_places([]) == []
    assert [rank for rank, _ in pick_places(_places(1))] == ["best"]
    assert [rank for rank, _ in pick_places(_places(2))] == ["best", "worst"]


def test_the_best_are_where_something_is_to_be_told_apart() -> None:
    places = [replace(place, num_classes=1 + (place.accuracy < 0.3)) for place in _places(40)]
    picked = pick_places(places)
    assert [round(place.accuracy * 100) for rank, place in picked if rank == "best"] == [29, 28, 27]
    assert [round(place.accuracy * 100) for rank, place in picked if rank == "worst"] == [0, 1, 2]
    plain = [replace(place, num_classes=1) for place in places]
    assert [round(place.accuracy * 100) for rank, place in pick_places(plain) if rank == "best"] == [
        39,
        38,
        37,
    ]


def test_a_sliver_is_no_class() -> None:
    counts = np.diag([40_000, 400, 20_000])
    place = score_place(0, (900, 900), Window(0, 0, PLACE_PX, PLACE_PX), counts)
    assert place is not None
    assert place.num_classes == 2


def test_stray_pixels_of_an_absent_class_make_no_place_the_worst() -> None:
    stray = np.array([[60_000, 0, 9], [0, 5_527, 0], [0, 0, 0]])
    blurred = np.array([[55_000, 5_000, 0], [0, 5_536, 0], [0, 0, 0]])
    good = np.array([[60_000, 9, 0], [0, 5_527, 0], [0, 0, 0]])
    window = Window(0, 0, PLACE_PX, PLACE_PX)
    places = [
        score_place(number, (900, 900), window, each) for number, each in enumerate((stray, blurred, good))
    ]
    found = [each for each in places if each is not None]
    assert found[0].mean_iou < found[1].mean_iou
    assert {rank: place.scene for rank, place in pick_places(found)} == {"best": 2, "median": 0, "worst": 1}
    assert found[1].as_dict()["wrong"] == pytest.approx(5_000 / 65_536, abs=1e-6)
