"""Changes of colour and sharpness of pictures: drawn as a few numbers, applied to tensors of any device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SHARE, HUE = 0.25, 0.25  # of brightness, contrast and saturation; of a whole turn of the hue
SIGMA_PX = (0.15, 1.30)
_GREY = (0.299, 0.587, 0.114)  # what red, green and blue add to brightness
_YIQ = ((*_GREY,), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))  # brightness, and two axes of colour
_REACH = 3.0  # standard deviations after which a Gaussian is cut off


@dataclass(frozen=True)
class Recolouring:
    """Factors, the share of a turn by which hues change, and the order in which all that is done."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    order: tuple[int, ...]


def draw_recolouring(rng: np.random.Generator) -> Recolouring:
    """Draw how colours change: up to a quarter each, in any order."""
    factors = rng.uniform(1 - SHARE, 1 + SHARE, 3).tolist()
    hue, order = float(rng.uniform(-HUE, HUE)), tuple(rng.permutation(4).tolist())
    return Recolouring(factors[0], factors[1], factors[2], hue, order)


def recolour(image: Tensor, drawn: Recolouring) -> Tensor:
    """Change the colours of a float picture (red-green-blue, row, column).

    Each of the changes is linear in the colour, so all of them are one matrix and one offset: the picture is gone over
    once. For that, hues are turned about the grey axis, and values are not cut off between two changes.
    """
    matrix, offset = mixing(image.mean((-2, -1)), drawn)
    return torch.addmm(offset[:, None], matrix, image.flatten(1)).view_as(image)


def mixing(mean: Tensor, drawn: Recolouring) -> tuple[Tensor, Tensor]:
    """Return the matrix and the offset that change the colours of a picture of this mean red, green and blue."""
    grey = mean.new_tensor(_GREY)
    same = torch.eye(3, dtype=mean.dtype, device=mean.device)
    matrix, offset = same, torch.zeros_like(grey)
    steps = (
        (drawn.brightness * same, 0.0),
        (drawn.contrast * same, 1 - drawn.contrast),  # towards the mean grey
        (drawn.saturation * same + (1 - drawn.saturation) * grey.expand(3, 3), 0.0),
        (_turned(mean, drawn.hue), 0.0),
    )
    for number in drawn.order:
        step, to_mean = steps[number]
        shift = to_mean * (grey @ (matrix @ mean + offset))
        matrix, offset = step @ matrix, step @ offset + shift
    return matrix, offset


def draw_sigma_px(rng: np.random.Generator) -> float:
    """Draw how far a picture is blurred."""
    return float(rng.uniform(*SIGMA_PX))


def blur(image: Tensor, sigma_px: float) -> Tensor:
    """Blur a float picture (band, row, column) by a Gaussian; beyond its edges it goes on as it ends.

    Sums of shifted pictures: on a CPU more than ten times as quick as a convolution of single bands.
    """
    taps = gaussian(sigma_px)
    reach = len(taps) // 2
    padded = functional.pad(image[None], (reach,) * 4, mode="replicate")[0]
    return blur_along(blur_along(padded, taps, -1), taps, -2)


def gaussian(sigma_px: float) -> list[float]:
    """Return what the pixels of a row add to the one in their middle."""
    reach = max(1, math.ceil(_REACH * sigma_px))
    taps = [math.exp(-0.5 * (place / sigma_px) ** 2) for place in range(-reach, reach + 1)]
    return [tap / sum(taps) for tap in taps]


def blur_along(image: Tensor, taps: list[float], axis: int, out: Tensor | None = None) -> Tensor:
    """Blur a float picture along one axis; it becomes shorter by the reach of the taps at both ends."""
    length = image.shape[axis] - len(taps) + 1
    total: Tensor = torch.mul(image.narrow(axis, 0, length), taps[0], out=out)
    for place, tap in enumerate(taps[1:], start=1):
        total.add_(image.narrow(axis, place, length), alpha=tap)
    return total


def _turned(like: Tensor, hue: float) -> Tensor:
    """Return the matrix that turns hues by a share of a whole turn, from red to green."""
    cos, sin = math.cos(2 * math.pi * hue), math.sin(2 * math.pi * hue)
    to_yiq, to_rgb = _axes()
    turn = torch.tensor(((1, 0, 0), (0, cos, sin), (0, -sin, cos)), dtype=torch.float64)
    matrix: Tensor = to_rgb @ turn @ to_yiq
    return matrix.to(like)


@cache
def _axes() -> tuple[Tensor, Tensor]:
    """Return the matrices from red, green and blue to brightness and colour, and back."""
    to_yiq = torch.tensor(_YIQ, dtype=torch.float64)
    return to_yiq, torch.linalg.inv(to_yiq)
