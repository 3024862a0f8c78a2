"""Maps of lines and of edges: against slow plain versions, at borders, and in tiles as in the whole."""

from __future__ import annotations

import pickle
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import ndimage

from outsize.data.inputs.edges import (
    REACH_PX,
    MapMaker,
    canny,
    class_edges,
    gains_to_bytes,
    map_maker,
    reach_px,
)
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.tiles.grid import cover
from outsize.tiles.halo import Halo, Reach


def _picture(seed: int, height: int, width: int, bands: int = 3) -> torch.Tensor:
    """Smooth blobs and a little noise: lines of every direction, some weak, some strong."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(bands, height, width))
    smooth = ndimage.gaussian_filter(coarse, (0, 3, 3)) * 250 + 128 + rng.normal(size=coarse.shape)
    return torch.from_numpy(np.clip(smooth, 0, 255).astype(np.uint8))[None]


def _valid(height: int, width: int) -> torch.Tensor:
    return torch.ones(1, height, width, dtype=torch.bool)


def _plain_canny(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The method pixel by pixel; lines are followed by steps from strong ones."""
    bands, height, width = pixels.shape
    values = pixels.astype(np.float64)
    strength, down, right = (np.zeros((height, width)) for _ in range(3))
    for band in range(bands):
        rows = ndimage.sobel(values[band], axis=0)
        cols = ndimage.sobel(values[band], axis=1)
        takes = np.abs(rows) + np.abs(cols) > strength
        strength = np.where(takes, np.abs(rows) + np.abs(cols), strength)
        down, right = np.where(takes, rows, down), np.where(takes, cols, right)
    strength[[0, -1]], strength[:, [0, -1]] = 0, 0
    peak = np.zeros((height, width), bool)
    for row in range(1, height - 1):
        for col in range(1, width - 1):
            angle = np.degrees(np.arctan2(abs(down[row, col]), abs(right[row, col])))
            if angle < 22.5:
                step, ties = (0, 1), True
            elif angle > 67.5:
                step, ties = (1, 0), True
            else:
                step, ties = ((1, 1) if (down[row, col] < 0) == (right[row, col] < 0) else (1, -1)), False
            here = strength[row, col]
            before = strength[row - step[0], col - step[1]]
            after = strength[row + step[0], col + step[1]]
            peak[row, col] = here > before and (here >= after if ties else here > after)
    weak, found = peak & (strength > 10), peak & (strength > 100)
    todo = deque((row, col, 0) for row, col in np.argwhere(found))
    while todo:
        row, col, steps = todo.popleft()
        for next_row, next_col in np.ndindex(3, 3):
            near = row + next_row - 1, col + next_col - 1
            if steps < 16 and weak[near] and not found[near]:
                found[near] = True
                todo.append((*near, steps + 1))
    return found.astype(np.uint8)


@pytest.mark.parametrize("seed", range(3))
def test_lines_are_those_of_the_method_pixel_by_pixel(seed: int) -> None:
    picture = _picture(seed, 50, 61)
    found = canny(picture, _valid(50, 61), (1.0, 1.0, 1.0))[0].numpy()
    np.testing.assert_array_equal(found, _plain_canny(picture[0].numpy()))
    assert 0.02 < found.mean() < 0.4


def test_a_step_is_a_line_one_pixel_wide_and_the_frame_is_none() -> None:
    picture = torch.zeros(1, 1, 20, 30, dtype=torch.uint8)
    picture[..., 12:] = 200
    found = canny(picture, _valid(20, 30), (1.0,))[0]
    assert found.sum() == 18
    assert found[1:-1, 11].all()


def test_a_weak_line_is_followed_from_a_strong_one_and_not_for_ever() -> None:
    picture = torch.zeros(1, 1, 9, 60, dtype=torch.uint8)
    picture[..., 4:, :] = 5  # Sobel: 20, weak
    picture[..., 4:, :10] = 60  # 240, strong
    found = canny(picture, _valid(9, 60), (1.0,))[0]
    far = int(torch.nonzero(found.any(0)).max())
    assert 20 < far < 40
    assert not found[:, far + 1 :].any()


def test_nothing_that_is_not_valid_makes_a_line() -> None:
    picture = torch.full((1, 2, 16, 16), 100, dtype=torch.float32)
    picture[..., 5:9, 5:9] = float("nan")
    valid = ~picture[:, 0].isnan()
    assert canny(picture, valid, (1.0, 1.0)).sum() == 0
    assert canny(picture[..., :2, :], valid[:, :2], (1.0, 1.0)).shape == (1, 2, 16)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(40, 90), st.integers(40, 90))
def test_a_tile_has_the_lines_of_the_whole_where_its_halo_is_as_wide_as_they_look(
    seed: int, height: int, width: int
) -> None:
    picture, valid = _picture(seed, height, width), _valid(height, width)
    whole = canny(picture, valid, (1.0, 1.0, 1.0))[0]
    reach = Reach(REACH_PX["canny"], REACH_PX["canny"])
    for tile in cover(height, width, 24, Halo(reach, reach, 8)):
        rows, cols = tile.read.slices
        part = picture[..., rows, cols]
        missing = (0, tile.read.width - part.shape[-1], 0, tile.read.height - part.shape[-2])
        window = torch.nn.functional.pad(part, missing)
        inside = torch.nn.functional.pad(valid[..., rows, cols], missing)
        found = canny(window, inside, (1.0, 1.0, 1.0))[0]
        assert torch.equal(found[tile.core.within(tile.read).slices], whole[tile.core.slices])


def _plain_edges(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """By distances: of each pixel to the nearest one of another class, among those whose class is known."""
    edges = np.zeros(labels.shape, bool)
    for value in set(np.unique(labels)) - {IGNORE}:
        others = (labels != value) & (labels != IGNORE)
        if others.any():
            edges |= (labels == value) & (ndimage.distance_transform_edt(~others) <= 2)
    return edges.astype(np.uint8)


@pytest.mark.parametrize("seed", range(4))
def test_edges_are_within_two_pixels_of_another_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    coarse = ndimage.gaussian_filter(rng.normal(size=(40, 33)), 3)
    labels = np.digitize(coarse, np.quantile(coarse, (0.3, 0.6))).astype(np.uint8)
    labels[rng.random(labels.shape) < 0.1] = IGNORE
    labels[:, :4] = IGNORE
    found = class_edges(torch.from_numpy(labels)[None])[0].numpy()
    np.testing.assert_array_equal(found, _plain_edges(labels))
    assert 0 < found.mean() < 1


def test_class_0_has_edges_and_the_frame_and_unknown_pixels_have_none() -> None:
    labels = torch.zeros(1, 12, 12, dtype=torch.uint8)
    assert class_edges(labels).sum() == 0
    labels[:, :, 6:] = IGNORE
    assert class_edges(labels).sum() == 0
    labels[:, :, 6:] = 3
    assert class_edges(labels)[0, 5].tolist() == [0] * 4 + [1] * 4 + [0] * 4
    assert class_edges(labels[:, :1, :1]).tolist() == [[[0]]]


def test_pictures_that_are_no_bytes_are_brought_to_their_scale() -> None:
    statistics = BandStatistics((2000.0, 0.2), (320.0, 0.16))
    assert gains_to_bytes("uint8", statistics) == (1.0, 1.0)
    assert gains_to_bytes("uint16", statistics) == pytest.approx((0.2, 400.0))


def test_makers_can_be_sent_to_processes_and_say_how_far_they_look() -> None:
    statistics = BandStatistics((0.0,) * 3, (1.0,) * 3)
    assert map_maker((), "uint8", statistics) is None
    maker = pickle.loads(pickle.dumps(map_maker(("canny", "edges"), "uint8", statistics)))
    assert isinstance(maker, MapMaker)
    picture, valid = _picture(0, 20, 24), _valid(20, 24)
    labels = (picture[:, 0] > 128).to(torch.uint8)
    maps = maker(picture, valid, ClassRasters(labels))
    assert list(maps) == ["canny", "edges"]
    assert torch.equal(maps["canny"], canny(picture, valid, (1.0, 1.0, 1.0)))
    assert torch.equal(maps["edges"], class_edges(labels))
    assert (reach_px(()), reach_px(("edges",)), reach_px(("edges", "canny"))) == (0, 2, 18)
