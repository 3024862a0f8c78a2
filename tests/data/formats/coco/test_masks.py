"""Masks from outlines, runs and boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rasterio.features import rasterize

from outsize.data.formats.coco.file import Annotation, CocoPicture, Rle
from outsize.data.formats.coco.masks import burn_classes, burn_one, decode_rle, fill_ring
from outsize.data.formats.coco.runs import unpack_counts
from outsize.tiles.window import Window

numbers = st.floats(-15, 45, allow_nan=False, width=32)


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=9))
def test_a_ring_holds_the_pixels_whose_centres_it_surrounds(corners: list[tuple[float, float]]) -> None:
    """Against a plain walk around each centre; GDAL draws rings that cross themselves otherwise."""
    ring = tuple(number for corner in corners for number in corner)
    window = Window(2, 3, 20, 24)
    found = fill_ring(ring, window)
    for row in range(0, 20, 3):
        for col in range(0, 24, 3):
            x, y, inside = window.col + col + 0.5, window.row + row + 0.5, False
            for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
                if (y1 <= y) != (y2 <= y) and abs(
                    crossing := x1 + (y - y1) / (y2 - y1) * (x2 - x1) - x
                ) < 1e-6:
                    break  # on the outline to within rounding
                if (y1 <= y) != (y2 <= y) and crossing < 0:
                    inside = not inside
            else:
                assert found[row, col] == inside


def test_a_ring_is_what_gdal_makes_of_it() -> None:
    corners = [(3.3, 2.2), (20.7, 4.1), (15.2, 18.8), (9.1, 9.7), (2.4, 14.6)]
    shape = {"type": "Polygon", "coordinates": [[*corners, corners[0]]]}
    wanted = rasterize([(shape, 1)], out_shape=(22, 25))
    found = fill_ring(tuple(each for corner in corners for each in corner), Window(0, 0, 22, 25))
    np.testing.assert_array_equal(found, wanted == 1)


def packed(counts: list[int]) -> str:
    """Write runs as COCO does: the reverse of what is tested."""
    text = ""
    for number, count in enumerate(counts):
        left, more = count - counts[number - 2] if number > 2 else count, True
        while more:
            bits, left = left & 31, left >> 5
            more = left != (-1 if bits & 16 else 0)
            text += chr(48 + bits + 32 * more)
    return text


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 6))
def test_runs_come_back(values: list[bool], width: int) -> None:
    mask = np.resize(np.array(values), (7, width))
    flat = mask.T.ravel()
    ends = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *ends, flat.size]).tolist()
    counts = [0, *counts] if flat[0] else counts
    assert unpack_counts(packed(counts)) == tuple(counts)
    for form in (tuple(counts), packed(counts)):
        np.testing.assert_array_equal(decode_rle(Rle((7, width), form)), mask)


def test_packed_runs_of_a_large_picture() -> None:
    counts = [0, 5, 307_000, 31, 32, 33, 1, 1_000_000, 2]
    assert unpack_counts(packed(counts)) == tuple(counts)


def test_runs_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="runs of 5 pixels for 2 x 2"):
        decode_rle(Rle((2, 2), (1, 4)))
    with pytest.raises(ValueError, match="runs of 2 x 2 px"):
        burn_one(Annotation("a", rle=Rle((2, 2), (4,))), 3, 3)


def rectangle(left: float, top: float, right: float, bottom: float) -> tuple[float, ...]:
    return (left, top, right, top, right, bottom, left, bottom)


def burnt(*annotations: Annotation) -> NDArray[np.uint8]:
    picture = CocoPicture("a.jpg", 10, 12, annotations)
    return burn_classes(picture, {"bottle": 1, "cap": 2}, outside_value=0, ignore_value=255)


def test_the_smaller_object_lies_on_top_in_any_order() -> None:
    bottle, cap = Annotation("bottle", (rectangle(1, 1, 9, 9),)), Annotation("cap", (rectangle(2, 2, 4, 4),))
    for found in (burnt(bottle, cap), burnt(cap, bottle)):
        assert (np.count_nonzero(found == 2), np.count_nonzero(found == 1)) == (4, 60)
        assert set(found[2:4, 2:4].ravel()) == {2}


def test_rings_of_one_object_are_joined_and_not_cut_out() -> None:
    found = burnt(Annotation("cap", (rectangle(0, 0, 6, 6), rectangle(3, 3, 8, 8))))
    assert np.count_nonzero(found == 2) == 36 + 25 - 9


def test_what_reaches_out_of_the_picture_is_cut_off() -> None:
    found = burnt(Annotation("cap", (rectangle(-5, -1.3, 3, 2), rectangle(10, 8, 40, 90))))
    assert set(found[:2, :3].ravel()) == {2}
    assert set(found[8:, 10:].ravel()) == {2}
    assert np.count_nonzero(found) == 6 + 4
    assert not burnt(Annotation("cap", (rectangle(20, 20, 30, 30),))).any()


def test_an_object_without_outline_is_ignored_where_no_other_is() -> None:
    found = burnt(Annotation("cap", (rectangle(0, 0, 2, 2),)), Annotation("cap", box=(0, 0, 4, 4)))
    assert (np.count_nonzero(found == 2), np.count_nonzero(found == 255)) == (4, 12)
    assert not burnt(Annotation("cap", box=(3, 3, 0, 0)), Annotation("cap")).any()


@pytest.mark.parametrize("text", ["o" * 100_000, "\x00", "\u20ac1", "~"])
def test_runs_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="runs with the letter"):
        unpack_counts(text)
