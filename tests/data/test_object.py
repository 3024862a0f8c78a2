"""Objects: what is done to a list of them is what is done to the pixels of their picture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.data.arrays import nearest_px
from outsize.data.object import (
    Object,
    box_of,
    crop,
    flip,
    iou,
    keep_inside,
    make_object,
    scale,
    shared_px,
    shrink_objects,
    turn,
)
from outsize.tiles.window import Window

HEIGHT, WIDTH = 13, 17


def drawn(seed: int, num: int = 4, height: int = HEIGHT, width: int = WIDTH) -> tuple[Object, ...]:
    """Draw objects of any shape anywhere, also in several parts."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(num):
        mask = np.zeros((height, width), np.bool_)
        for _ in range(2):
            row, col = rng.integers(height), rng.integers(width)
            mask[row : row + rng.integers(1, 8), col : col + rng.integers(1, 8)] = True
        made = make_object(
            number % 3, Window(0, 0, height, width), mask & (rng.random((height, width)) < 0.9)
        )
        found += [] if made is None else [made]
    return tuple(found)


def painted(each: Object, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    whole = np.zeros((height, width), np.bool_)
    whole[each.window.slices] = each.mask
    return whole


def is_tight(each: Object) -> bool:
    edges = (each.mask[0], each.mask[-1], each.mask[:, 0], each.mask[:, -1])
    return each.mask.shape == (each.window.height, each.window.width) and all(edge.any() for edge in edges)


def test_an_object_lies_in_the_smallest_window() -> None:
    mask = np.zeros((8, 9), np.bool_)
    mask[2:5, 3] = mask[4, 3:7] = True
    made = make_object(1, Window(10, 20, 8, 9), mask, score=0.5)
    assert made is not None
    assert made.window == Window(12, 23, 3, 4)
    assert made.box == box_of(made.window) == (23.0, 12.0, 27.0, 15.0)
    assert made.num_px == 6
    assert (made.class_id, made.score, made.clipped) == (1, 0.5, False)
    assert make_object(1, Window(0, 0, 8, 9), np.zeros((8, 9), np.bool_)) is None


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_turns_and_flips_are_those_of_the_pixels(seed: int) -> None:
    objects, quarters = drawn(seed), seed % 6
    for before, after in zip(objects, turn(objects, HEIGHT, WIDTH, quarters), strict=True):
        wanted = np.rot90(painted(before), quarters)
        assert np.array_equal(painted(after, *wanted.shape), wanted)
        assert is_tight(after)
    for before, after in zip(objects, flip(objects, WIDTH), strict=True):
        assert np.array_equal(painted(after), painted(before)[:, ::-1])


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_crop_is_that_of_the_pixels_and_says_what_was_cut(seed: int) -> None:
    objects, rng = drawn(seed), np.random.default_rng(seed)
    window = Window(int(rng.integers(-3, 9)), int(rng.integers(-3, 9)), 8, 10)
    inside = window.intersect(Window(0, 0, HEIGHT, WIDTH))
    left = list(crop(objects, window))
    for before in objects:
        wanted = np.zeros((8, 10), np.bool_)
        wanted[inside.within(window).slices] = painted(before)[inside.slices]
        if not wanted.any():
            continue
        after = left.pop(0)
        assert np.array_equal(painted(after, 8, 10), wanted)
        assert after.clipped == (int(wanted.sum()) < before.num_px)
        assert is_tight(after)
    assert not left


def test_what_is_cut_once_stays_clipped() -> None:
    whole = Object(0, Window(0, 0, 4, 4), np.ones((4, 4), np.bool_), clipped=True)
    assert crop([whole], Window(0, 0, 9, 9))[0].clipped
    assert scale([whole], (9, 9), (18, 18))[0].clipped


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_scale_takes_the_nearest_pixel(seed: int) -> None:
    objects, size = drawn(seed), (5 + seed % 20, 4 + seed % 23)
    left = list(scale(objects, (HEIGHT, WIDTH), size))
    rows, cols = nearest_px(HEIGHT, size[0]), nearest_px(WIDTH, size[1])
    for before in objects:
        wanted = painted(before)[rows][:, cols]
        if wanted.any():
            assert np.array_equal(painted(left.pop(0), *size), wanted)
    assert not left


def test_a_smaller_reading_takes_the_middle_of_squares() -> None:
    for shrink in (2, 3):
        for before, after in zip(objects := drawn(7), shrink_objects(objects, shrink), strict=False):
            wanted = painted(before)[shrink // 2 :: shrink, shrink // 2 :: shrink]
            assert np.array_equal(painted(after, *wanted.shape), wanted)


def test_what_lies_outside_of_a_split_is_cut_off() -> None:
    inside = np.zeros((HEIGHT, WIDTH), np.bool_)
    inside[:, :9] = True
    objects = drawn(3)
    left = list(keep_inside(objects, inside))
    for before in objects:
        wanted = painted(before) & inside
        if wanted.any():
            after = left.pop(0)
            assert np.array_equal(painted(after), wanted)
            assert after.clipped == (int(wanted.sum()) < before.num_px)
    assert not left
    assert keep_inside(objects, np.ones((HEIGHT, WIDTH), np.bool_)) == objects


def test_iou_is_that_of_the_pixels() -> None:
    objects = drawn(11, num=8)
    for one in objects:
        for other in objects:
            ours, theirs = painted(one), painted(other)
            assert shared_px(one, other) == int((ours & theirs).sum())
            assert iou(one, other) == pytest.approx((ours & theirs).sum() / (ours | theirs).sum())
    assert iou(objects[0], objects[0]) == 1.0
