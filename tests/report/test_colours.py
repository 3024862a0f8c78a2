"""Colours of lines and bars differ for all eyes, also for those without red, green or blue cones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from outsize.report import curves, schedule, timeline, tradeoff

# what such an eye sees of linear red, green and blue: Machado, Oliveira and Fernandes, 2009, severity 1
_EYES = {
    "all cones": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
_LEAST = 12.0  # in CIELAB, where 2.3 is just seen when the two lie side by side


def _lab(colour: str, eye: object) -> NDArray[np.float64]:
    values = np.array([int(colour[first : first + 2], 16) for first in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    seen = _TO_XYZ @ np.clip(np.asarray(eye) @ linear, 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    "colours",
    [
        curves._COLOURS,
        timeline._COLOURS,
        tuple(schedule._COLOURS.values()),
        (tradeoff._OURS, tradeoff._OTHERS, tradeoff._FAILED, tradeoff._PLAIN),
    ],
)
@pytest.mark.parametrize("eye", _EYES)
def test_colours_are_told_apart(colours: tuple[str, ...], eye: str) -> None:
    for one, other in itertools.combinations(colours, 2):
        assert np.linalg.norm(_lab(one, _EYES[eye]) - _lab(other, _EYES[eye])) > _LEAST, (one, other)
