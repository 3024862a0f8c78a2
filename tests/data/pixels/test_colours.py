"""Colours and sharpness: against torchvision and scipy, and whatever the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torchvision.transforms import functional

from outsize.data.pixels.colours import (
    HUE,
    SHARE,
    SIGMA_PX,
    Recolouring,
    blur,
    draw_recolouring,
    draw_sigma_px,
    recolour,
)

IMAGE = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
NOTHING = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}


def changed(*order: int, **factors: float) -> torch.Tensor:
    return recolour(IMAGE, Recolouring(**{**NOTHING, **factors}, order=order or (0, 1, 2, 3)))


def test_nothing_changes_nothing() -> None:
    torch.testing.assert_close(changed(), IMAGE)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("factor", [0.75, 1.2])
def test_factors_are_those_of_torchvision(name: str, factor: float) -> None:
    wanted = getattr(functional, f"adjust_{name}")(IMAGE, factor)
    torch.testing.assert_close(changed(**{name: factor}), wanted, atol=1e-4, rtol=1e-4)


def test_order_matters_as_it_does_there() -> None:
    one = functional.adjust_saturation(functional.adjust_contrast(IMAGE, 0.8), 1.2)
    torch.testing.assert_close(changed(1, 2, 3, 0, contrast=0.8, saturation=1.2), one, atol=1e-4, rtol=1e-4)
    dark = functional.adjust_contrast(functional.adjust_brightness(IMAGE, 0.8), 0.9)
    torch.testing.assert_close(changed(0, 1, 2, 3, brightness=0.8, contrast=0.9), dark, atol=1e-4, rtol=1e-4)


def test_hues_turn_about_grey_from_red_to_green() -> None:
    grey = torch.full((3, 4, 4), 0.5)
    nothing = Recolouring(1.0, 1.0, 1.0, 0.2, (0, 1, 2, 3))
    torch.testing.assert_close(recolour(grey, nothing), grey, atol=1e-5, rtol=0)
    red = torch.tensor([0.8, 0.2, 0.2])[:, None, None].expand(3, 2, 2)
    green = recolour(red, Recolouring(1.0, 1.0, 1.0, 1 / 3, (0, 1, 2, 3)))
    assert green[1].mean() > green[0].mean()
    assert green[1].mean() > green[2].mean()
    back = recolour(recolour(IMAGE, nothing), Recolouring(1.0, 1.0, 1.0, -0.2, (0, 1, 2, 3)))
    torch.testing.assert_close(back, IMAGE, atol=1e-5, rtol=0)


@pytest.mark.parametrize("sigma_px", [0.15, 0.6, 1.3])
def test_blur_is_that_of_scipy(sigma_px: float) -> None:
    reach = max(1, int(np.ceil(3 * sigma_px)))
    wanted = [ndimage.gaussian_filter(band, sigma_px, mode="nearest", radius=reach) for band in IMAGE.numpy()]
    torch.testing.assert_close(
        blur(IMAGE, sigma_px), torch.from_numpy(np.stack(wanted)), atol=1e-5, rtol=1e-5
    )


def test_draws_stay_in_their_range_and_come_back() -> None:
    draws = [draw_recolouring(np.random.default_rng(seed)) for seed in range(200)]
    factors = np.array([(each.brightness, each.contrast, each.saturation) for each in draws])
    assert factors.min() >= 1 - SHARE
    assert factors.max() <= 1 + SHARE
    assert np.ptp(factors) > 1.8 * SHARE
    assert max(abs(each.hue) for each in draws) <= HUE
    assert len({each.order for each in draws}) == 24
    assert draw_recolouring(np.random.default_rng(5)) == draws[5]
    sigmas = [draw_sigma_px(np.random.default_rng(seed)) for seed in range(200)]
    assert SIGMA_PX[0] <= min(sigmas) < 0.3
    assert 1.2 < max(sigmas) <= SIGMA_PX[1]


def test_tensors_without_data_go_through() -> None:
    """Nothing is read back to the host: so it runs on any device."""
    image = IMAGE.to("meta")
    assert recolour(image, draw_recolouring(np.random.default_rng(0))).shape == image.shape
    assert blur(image, 1.0).shape == image.shape
