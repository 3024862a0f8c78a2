"""Grids of numbers go through every change with their picture."""

from __future__ import annotations

import numpy as np
import torch

from outsize.data.frames import UNKNOWN, NumberGrid
from outsize.tiles.window import Window

GRID = NumberGrid(np.arange(2 * 3 * 4, dtype=np.int16).reshape(2, 3, 4), "2020-10-31T08:00Z", 5)


def test_changes_are_those_of_pixels() -> None:
    np.testing.assert_array_equal(GRID.flip().numbers, GRID.numbers[..., ::-1])
    np.testing.assert_array_equal(GRID.turn(1).numbers, np.rot90(GRID.numbers, axes=(1, 2)))
    np.testing.assert_array_equal(GRID.resize((6, 8)).numbers[:, ::2, ::2], GRID.numbers)
    assert (GRID.flip().starts, GRID.turn(3).base) == ("2020-10-31T08:00Z", 5)


def test_count_what_is_known() -> None:
    numbers = GRID.numbers.copy()
    numbers[1, 0] = UNKNOWN
    assert NumberGrid(numbers).count(2).tolist() == [12, 8]


def test_batches_and_crops() -> None:
    grids = GRID.stack([GRID, GRID.flip()])
    assert len(grids) == 2
    assert grids.base == 5
    assert grids.part(slice(1, 2)).starts == ("2020-10-31T08:00Z",)
    cut = grids.crop(Window(-1, 0, 4, 3), Window(0, 1, 2, 2))
    assert cut.numbers.shape == (2, 2, 4, 3)
    assert torch.equal(cut.numbers[:, :, 1:3, 1:3], grids.numbers[:, :, 0:2, 1:3])
    assert int((cut.numbers == UNKNOWN).sum()) == 2 * 2 * (12 - 4)
    assert [tensor.dtype for tensor in grids.each(lambda each: each.double()).tensors()] == [torch.float64]
