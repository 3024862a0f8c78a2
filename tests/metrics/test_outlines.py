"""Outlines as bits, against masks of single classes and discs drawn by scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skimage.morphology import dilation, disk

from outsize.metrics.outlines import as_bits, count_bits, edge_outline, inner_outline, spread


def _maps(most_px: int = 9) -> st.SearchStrategy[np.ndarray]:
    sizes = st.tuples(st.integers(1, most_px), st.integers(1, most_px))
    return st.tuples(sizes, st.integers(0, 2**31)).map(
        lambda drawn: np.random.default_rng(drawn[1]).choice(np.uint8([0, 1, 2, 3, 255]), drawn[0])
    )


@pytest.mark.parametrize("num_bits", [1, 7, 8, 15, 16, 31, 32, 63])
def test_each_class_has_its_bit(num_bits: int) -> None:
    wanted = list(range(100, 100 + num_bits))
    classes = np.uint8([[*wanted, 3, 255]])
    bits = as_bits(torch.from_numpy(classes), wanted)
    assert bits.tolist() == [[*(1 << bit for bit in range(num_bits)), 0, 0]]
    assert bits.element_size() * 8 > num_bits  # the sign is left alone
    counted = count_bits(bits.flatten().repeat(3), num_bits)
    assert counted.tolist() == [3] * num_bits


@given(classes=_maps())
def test_inner_outline_equals_a_loop(classes: np.ndarray) -> None:
    found = inner_outline(as_bits(torch.from_numpy(classes), range(4))).numpy()
    height, width = classes.shape
    for row in range(height):
        for col in range(width):
            beside = [(row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)]
            inside = [classes[at] for at in beside if 0 <= at[0] < height and 0 <= at[1] < width]
            mine = classes[row, col]
            on_outline = mine < 4 and any(each != mine for each in inside)
            assert found[row, col] == (1 << mine if on_outline else 0)


@given(classes=_maps())
def test_edge_outline_equals_a_loop(classes: np.ndarray) -> None:
    found = edge_outline(as_bits(torch.from_numpy(classes), range(4))).numpy()
    height, width = classes.shape
    for row in range(height):
        for col in range(width):
            for each in range(4):
                mask = classes == each
                # the last row looks to the right alone, the last column down alone, the corner nowhere
                down, right = row + 1 < height, col + 1 < width
                next_px = [(row, col + 1)] * right + [(row + 1, col)] * down
                next_px += [(row + 1, col + 1)] * (down and right)
                expected = any(mask[row, col] != mask[at] for at in next_px)
                assert bool(found[row, col] >> each & 1) == expected


@pytest.mark.parametrize("radius", [0, 1, 2, 5, 9, 12])
def test_a_point_becomes_a_disc(radius: int) -> None:
    outline = torch.zeros(40, 37, dtype=torch.int8)
    outline[20, 5] = 2
    (disc,) = spread(outline, [radius * radius], 0, 40)
    expected = dilation((outline.numpy() > 0).astype(np.uint8), disk(radius))
    np.testing.assert_array_equal(disc.numpy(), 2 * expected)


@given(
    classes=_maps(24),
    squares=st.lists(st.integers(0, 200), min_size=1, max_size=3),
    rows=st.tuples(st.integers(0, 23), st.integers(0, 23)),
)
def test_spread_equals_the_nearest_distance(
    classes: np.ndarray, squares: list[int], rows: tuple[int, int]
) -> None:
    start, stop = (min(each, len(classes)) for each in sorted(rows))
    sparse = np.where(np.random.default_rng(0).random(classes.shape) < 0.05, classes, 255).astype(np.uint8)
    bits = as_bits(torch.from_numpy(sparse), range(4))
    found = spread(bits, squares, start, stop)
    at = np.stack(np.mgrid[start:stop, : classes.shape[1]], -1)
    for each in range(4):
        points = np.argwhere(sparse == each)
        apart = ((at[:, :, None] - points) ** 2).sum(-1)
        nearest = apart.min(-1) if len(points) else np.full(at.shape[:2], 2**30)
        for disc, square in zip(found, squares, strict=True):
            np.testing.assert_array_equal(disc.numpy() >> each & 1, nearest <= square)
