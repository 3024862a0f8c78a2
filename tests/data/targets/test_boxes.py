"""Boxes go where their pixels go; what a window hardly shows is neutral."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outsize.data.boxes import NEUTRAL, SceneBoxes, gather
from outsize.data.targets import BoxList
from outsize.tiles.window import Window

_SIZE = (12, 20)


def _list(*sides: tuple[int, int, int, int]) -> BoxList:
    return BoxList(_SIZE, np.array(sides, np.float32).reshape(-1, 4), np.arange(len(sides)))


def _painted(boxes: BoxList) -> np.ndarray:
    canvas = np.zeros(boxes.size, np.int64)
    for number, (left, top, right, bottom) in enumerate(boxes.sides.astype(int), start=1):
        canvas[top:bottom, left:right] = number
    return canvas


@pytest.mark.parametrize("quarters", range(5))
def test_boxes_turn_as_pixels_do(quarters: int) -> None:
    boxes = _list((2, 1, 9, 4), (11, 5, 20, 12))
    assert np.array_equal(_painted(boxes.turn(quarters)), np.rot90(_painted(boxes), quarters))


def test_boxes_flip_and_grow_as_pixels_do() -> None:
    boxes = _list((2, 1, 9, 4), (11, 5, 20, 12))
    assert np.array_equal(_painted(boxes.flip()), _painted(boxes)[:, ::-1])
    twice = np.kron(_painted(boxes), np.ones((3, 2), np.int64))
    assert np.array_equal(_painted(boxes.resize((36, 40))), twice)


def test_a_window_cuts_boxes_and_what_it_hardly_shows_is_neutral() -> None:
    held = SceneBoxes(
        gather([[0, 0, 10, 10], [8, 0, 20, 10], [30, 0, 40, 10], [6, 2, 9, 8]], ["Car"] * 4),
        np.array([0, 1, 0, NEUTRAL]),
    )
    boxes = BoxList.of(held, Window(0, 5, 10, 5))
    assert boxes.sides.tolist() == [[0, 0, 5, 10], [3, 0, 5, 10], [1, 2, 4, 8]]
    assert boxes.class_ids.tolist() == [0, NEUTRAL, NEUTRAL]
    assert boxes.count(3).tolist() == [1, 0, 0]


def test_a_batch_is_one_table_and_its_parts_know_their_core() -> None:
    batch = _list((2, 1, 9, 4)).stack([_list((2, 1, 9, 4), (11, 5, 20, 12)), _list()])
    assert len(batch) == 2
    assert batch.labels[:, :3].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert batch.sides.shape == (2, 16, 4)
    part = batch.crop(Window(2, 4, 8, 8), Window(4, 6, 4, 4)).part(slice(0, 1))
    assert part.core == Window(2, 2, 4, 4)
    assert part.sides[0, 1].tolist() == [7, 3, 16, 10]
    assert part.size == _SIZE
    again = part.crop(Window(1, 1, 6, 6), Window(1, 1, 6, 6))
    assert again.core == Window(1, 1, 4, 4)
    assert torch.equal(again.sides[0, 1], torch.tensor([6.0, 2.0, 15.0, 9.0]))
