"""The colour of what is wrong: as far as can be from a run's class colours, also for the colour-blind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
_CHOICE: tuple[Colour, ...] = (
    (0, 0, 0),
    (225, 0, 165),
    (0, 70, 255),
    (255, 110, 0),
    (105, 0, 210),
    (0, 175, 215),
    (0, 160, 50),
    (214, 39, 40),
)
_PALE: tuple[Colour, ...] = ((145, 145, 145), (200, 200, 200), (255, 255, 255))  # what wrong pixels lie on
# how linear colours look to most, without red cones, and without green ones (Machado et al. 2009)
_EYES = np.array(
    [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ]
)
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def wrong_colour(classes: Sequence[Colour]) -> Colour:
    """Return the colour farthest from all class colours, as seen by the eye that distinguishes them worst."""
    apart = _apart(_perceived(_CHOICE)[:, :, None], _perceived((*classes, *_PALE))[:, None])
    return _CHOICE[int(apart.min(axis=(0, 2)).argmax())]


def _apart(ones: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how different colours in Lab look (CIE94): in vivid ones, more or less of a hue hardly counts."""
    chromas = [np.hypot(each[..., 1], each[..., 2]) for each in (ones, others)]
    light, green, blue = np.moveaxis(ones - others, -1, 0)
    chroma = chromas[0] - chromas[1]
    hue_squared = np.maximum(0.0, green**2 + blue**2 - chroma**2)
    vivid = np.sqrt(chromas[0] * chromas[1])
    squared = light**2 + (chroma / (1 + 0.045 * vivid)) ** 2 + hue_squared / (1 + 0.015 * vivid) ** 2
    return np.asarray(np.sqrt(squared))


def _perceived(colours: Sequence[Colour]) -> NDArray[np.float64]:
    """Return CIE Lab by eye and colour."""
    shares = np.array(colours, np.float64) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.einsum("eij,cj->eci", _EYES, linear), 0, 1)
    ratios = seen @ _TO_XYZ.T / _TO_XYZ.sum(axis=1)
    bent = np.where(ratios > 216 / 24389, np.cbrt(ratios), (24389 / 27 * ratios + 16) / 116)
    x, y, z = np.moveaxis(bent, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)
