"""Boundary F against a slow, plain version made of scipy's distances, and against figures found by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import binary_erosion, distance_transform_edt, generate_binary_structure

from outsize.metrics import boundary
from outsize.metrics.boundary import (
    PIXELS,
    BoundaryScores,
    Tolerances,
    count_outlines,
    no_outlines,
    tolerances_for,
)
from outsize.tiles.window import Window

CROSS = generate_binary_structure(2, 1)
Maps = tuple[np.ndarray, np.ndarray]


def _inner(mask: np.ndarray) -> np.ndarray:
    return mask & ~binary_erosion(mask, CROSS, border_value=1)


def _edges(mask: np.ndarray) -> np.ndarray:
    wide = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    return (mask != wide[1:, :-1]) | (mask != wide[:-1, 1:]) | (mask != wide[1:, 1:])


def _near(points: np.ndarray, others: np.ndarray, tolerance_px: float) -> int:
    if not others.any():
        return 0
    return int(np.count_nonzero(points & (distance_transform_edt(~others) <= tolerance_px + 1e-9)))


def _plain(truth: np.ndarray, predicted: np.ndarray, each: int, outline: object, px: float) -> list[int]:
    """Count one class the slow way."""
    known = (truth < 250) & (predicted < 250)
    one, other = (outline((classes == each) & known) for classes in (predicted, truth))
    return [int(one.sum()), _near(one, other, px), int(other.sum()), _near(other, one, px)]


def _f(counts: list[int], empty: float) -> float:
    num_predicted, near_true, num_true, near_predicted = counts
    if not num_predicted and not num_true:
        return empty
    if not near_true or not near_predicted:
        return 0.0
    precision, recall = near_true / num_predicted, near_predicted / num_true
    return 2 * precision * recall / (precision + recall)


def _blobs(seed: int, height: int, width: int, num_classes: int) -> Maps:
    """Draw regions, a prediction that is a little off, and pixels that nobody labelled."""
    rng = np.random.default_rng(seed)
    seeds = rng.random((6, 2)) * (height, width)
    at = np.stack(np.mgrid[:height, :width], -1)
    classes = rng.integers(0, num_classes, 6).astype(np.uint8)
    maps = []
    for offset in (0.0, rng.integers(0, 4)):
        apart = ((at[:, :, None] - seeds - offset) ** 2).sum(-1)
        maps.append(classes[apart.argmin(-1)])
    maps[0][rng.random((height, width)) < 0.02] = 255
    maps[1][rng.random((height, width)) < 0.02] = 255
    return maps[0], maps[1]


def _tensors(maps: Maps) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(maps[0].copy()), torch.from_numpy(maps[1].copy())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    height=st.integers(1, 40),
    width=st.integers(1, 50),
    diagonal_px=st.sampled_from([1.0, 2.5, 4.5, 9.0]),
)
def test_counts_equal_those_of_distances(seed: int, height: int, width: int, diagonal_px: float) -> None:
    maps = _blobs(seed, height, width, 3)
    found = count_outlines(*_tensors(maps), 3, Tolerances(int(diagonal_px**2)))
    assert found.diagonal is not None
    for each in range(3):
        assert found.diagonal[each].tolist() == _plain(*maps, each, _inner, diagonal_px)
        for number, px in enumerate(PIXELS):
            assert found.pixels[number, each].tolist() == _plain(*maps, each, _edges, px)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    cuts=st.tuples(st.integers(0, 60), st.integers(0, 70)),
    strip_px=st.sampled_from([1, 1500, 10**6]),
)
def test_windows_with_their_margin_add_up(seed: int, cuts: tuple[int, int], strip_px: int) -> None:
    rng = np.random.default_rng(seed)
    # lonely points, some of them farther from all others than a tolerance
    maps = ((rng.random((60, 70)) < 0.02).astype(np.uint8), (rng.random((60, 70)) < 0.02).astype(np.uint8))
    tolerances = Tolerances(10, pixels=(1, 9))
    counted = rng.random((60, 70)) < 0.9
    whole = count_outlines(*_tensors(maps), 2, tolerances, counted=torch.from_numpy(counted))
    total = no_outlines(2, tolerances)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundary, "_CPU_STRIP_PX", strip_px)
        for row, row_end in ((0, cuts[0]), (cuts[0], 60)):
            for col, col_end in ((0, cuts[1]), (cuts[1], 70)):
                core = Window(row, col, row_end - row, col_end - col)
                margin = tolerances.margin_px
                wide = Window(
                    row - margin, col - margin, core.height + 2 * margin, core.width + 2 * margin
                ).intersect(Window(0, 0, 60, 70))
                parts = _tensors((maps[0][wide.slices], maps[1][wide.slices]))
                total += count_outlines(
                    *parts,
                    2,
                    tolerances,
                    core=core.within(wide),
                    counted=torch.from_numpy(counted[core.slices].copy()),
                )
    np.testing.assert_array_equal(total.pixels, whole.pixels)
    np.testing.assert_array_equal(total.diagonal, whole.diagonal)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_turning_or_swapping_changes_nothing_by_the_diagonal(seed: int) -> None:
    truth, predicted = _blobs(seed, 30, 44, 3)
    here = count_outlines(*_tensors((truth, predicted)), 3, Tolerances(12)).diagonal
    turned = count_outlines(*_tensors((np.rot90(truth), np.rot90(predicted))), 3, Tolerances(12)).diagonal
    swapped = count_outlines(*_tensors((predicted, truth)), 3, Tolerances(12)).diagonal
    assert here is not None
    assert swapped is not None
    np.testing.assert_array_equal(here, turned)
    np.testing.assert_array_equal(here, swapped[:, [2, 3, 0, 1]])


def test_more_classes_than_bits() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 140, (20, 30)).astype(np.uint8)
    predicted = np.where(rng.random((20, 30)) < 0.5, truth, rng.integers(0, 140, (20, 30))).astype(np.uint8)
    found = count_outlines(*_tensors((truth, predicted)), 140, Tolerances(4))
    assert found.diagonal is not None
    for each in range(140):
        assert found.diagonal[each].tolist() == _plain(truth, predicted, each, _inner, 2)
        assert found.pixels[1, each].tolist() == _plain(truth, predicted, each, _edges, 5)


def test_tolerance_by_the_diagonal_is_exact() -> None:
    assert [each.diagonal for each in tolerances_for([(720, 960), (360, 480), (1024, 2048)])] == [81, 20, 294]
    assert tolerances_for([(720, 960)])[0].margin_px == 13
    # one scene of a town among pictures: none by the diagonal, all by pixels
    assert {each.diagonal for each in tolerances_for([(720, 960), (10_000, 10_000)])} == {None}
    # the published shares of the diagonal of 1024 x 2048 px
    shares = (0.0005, 0.001875, 0.00375, 0.005)
    assert tuple(math.ceil(share * math.hypot(1024, 2048)) for share in shares) == PIXELS


def test_a_line_that_is_off_by_a_known_distance() -> None:
    truth, predicted = np.zeros((40, 60), np.uint8), np.zeros((40, 60), np.uint8)
    truth[:, 30:] = 1
    predicted[:, 35:] = 1
    for px, score in ((4, 0.0), (5, 1.0)):
        counts = count_outlines(*_tensors((truth, predicted)), 2, Tolerances(px * px))
        assert BoundaryScores(("a", "b"), [counts]).as_dict()["diagonal"]["mean"] == score
    by_pixels = BoundaryScores(("a", "b"), [counts]).as_dict()["pixels"]
    assert [by_pixels[str(px)]["mean"] for px in PIXELS] == [0.0, 1.0, 1.0, 1.0]


def test_means_and_empty_classes_as_published() -> None:
    """Class c is in no picture, class b in one; the first picture is right, in the second b was not found."""
    one = np.zeros((30, 40), np.uint8)
    one[:, 20:] = 1
    two, missed = one.copy(), np.zeros_like(one)
    whole = np.full_like(one, 0)
    pairs = [(one, one), (two, missed), (whole, whole)]
    counts = [count_outlines(*_tensors(pair), 3, Tolerances(9)) for pair in pairs]
    scores = BoundaryScores(("a", "b", "c"), counts)
    table = scores.as_dict()
    assert table["diagonal"]["classes"] == {"a": 0.5, "b": 0.5, "c": None}
    # picture first: 1 and 0; the third has no outline at all and does not count
    assert table["diagonal"]["mean"] == 0.5
    assert [None if math.isnan(each) else each for each in scores.of_pictures()] == [1.0, 0.0, None]
    for px in PIXELS:
        found = table["pixels"][str(px)]
        assert found["classes"] == {
            "a": pytest.approx(2 / 3, abs=1e-6),
            "b": pytest.approx(2 / 3, abs=1e-6),
            "c": 1.0,
        }
        assert found["mean"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3, abs=1e-6)
        assert found["mean_where_present"] == 0.5
    assert json.loads(json.dumps(table, allow_nan=False)) == table


def test_the_mean_is_of_pictures_and_not_of_classes() -> None:
    pairs = [_blobs(seed, 40, 40, 4) for seed in range(5)]
    counts = [count_outlines(*_tensors(pair), 4, Tolerances(2)) for pair in pairs]
    table = BoundaryScores(("a", "b", "c", "d"), counts).as_dict()
    each = np.array(
        [[_f(_plain(*pair, number, _inner, 1.5), np.nan) for number in range(4)] for pair in pairs]
    )
    assert np.isnan(each).any()
    image_first = np.nanmean([np.nanmean(scores) for scores in each])
    class_first = np.nanmean(np.nanmean(each, axis=0))
    assert table["diagonal"]["mean"] == pytest.approx(image_first, abs=1e-6)
    assert abs(image_first - class_first) > 1e-3
    by_pixels = np.array(
        [[_f(_plain(*pair, number, _edges, 2), 1.0) for number in range(4)] for pair in pairs]
    )
    assert table["pixels"]["2"]["mean"] == pytest.approx(by_pixels.mean(), abs=1e-6)


def test_what_is_ignored_belongs_to_no_class() -> None:
    """The prediction under an ignored label changes nothing, wherever its outlines lie."""
    truth, predicted = _blobs(3, 40, 50, 3)
    truth[10:25, 10:30] = 255
    other = predicted.copy()
    other[10:25, 10:30] = np.random.default_rng(0).integers(0, 3, (15, 20))
    one, two = (count_outlines(*_tensors((truth, each)), 3, Tolerances(9)) for each in (predicted, other))
    np.testing.assert_array_equal(one.pixels, two.pixels)
    np.testing.assert_array_equal(one.diagonal, two.diagonal)
