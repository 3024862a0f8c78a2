"""Pixels changed in strips are those of a change of the whole, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.pixels import strips
from outsize.data.pixels.colours import blur, draw_recolouring, recolour
from outsize.data.pixels.strips import blur_pixels, recolour_pixels


def _image(dtype: str, shape: tuple[int, int], *, side_by_side: bool = False) -> NDArray[Any]:
    rng = np.random.default_rng(shape[0])
    pixels = rng.integers(0, 256, (*shape, 3)).astype(dtype)
    bands = np.moveaxis(pixels, 2, 0)
    return bands if side_by_side else np.ascontiguousarray(bands)


def _at_once(image: NDArray[Any], change: Callable[[Tensor], Tensor]) -> NDArray[Any]:
    made = change(torch.from_numpy(image.astype(np.float32)))
    if image.dtype != np.float32:
        made = made.round().clamp(np.iinfo(image.dtype).min, np.iinfo(image.dtype).max)
    return made.numpy().astype(image.dtype)


@pytest.fixture(params=[64, 1000, 2**16])
def strip_px(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(strips, "_STRIP_PX", request.param)
    return int(request.param)


@pytest.mark.usefixtures("strip_px")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("sigma_px", [0.15, 0.26, 0.5, 1.0, 1.3])
def test_blur_is_that_of_the_whole(sigma_px: float, side_by_side: bool, dtype: str) -> None:
    image = _image(dtype, (37, 53), side_by_side=side_by_side)
    before = image.copy()
    wanted = _at_once(image, lambda whole: blur(whole, sigma_px))
    np.testing.assert_array_equal(blur_pixels(image, sigma_px), wanted)
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("shape", [(1, 1), (2, 40), (40, 3)])
def test_a_blur_may_reach_further_than_the_image(shape: tuple[int, int]) -> None:
    image = _image("uint8", shape)
    np.testing.assert_array_equal(
        blur_pixels(image, 1.3), _at_once(image, lambda whole: blur(whole, 1.3)), strict=True
    )


def test_a_blur_that_would_change_nothing_is_left_out() -> None:
    extremes = np.tile(np.array([[0, 255], [255, 0]], np.uint8), (3, 8, 8))
    for sigma_px in (0.2, 0.25, 0.255):
        wanted = _at_once(extremes, lambda whole, sigma_px=sigma_px: blur(whole, sigma_px))  # type: ignore[misc]
        np.testing.assert_array_equal(blur_pixels(extremes, sigma_px), wanted)
    assert blur_pixels(extremes, 0.2) is extremes
    assert blur_pixels(extremes, 0.3) is not extremes
    assert blur_pixels(extremes.astype(np.float32), 0.2).dtype == np.float32


@pytest.mark.usefixtures("strip_px")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("seed", range(4))
def test_colours_are_those_of_the_whole(seed: int, dtype: str) -> None:
    image = _image(dtype, (48, 64))
    drawn = draw_recolouring(np.random.default_rng(seed))
    wanted = _at_once(image, lambda whole: recolour(whole, drawn))
    found = recolour_pixels(image, drawn)
    assert found.dtype == image.dtype
    # a matrix product of another length may add in another order: whole numbers do not show it
    np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == "float32" else 0)
