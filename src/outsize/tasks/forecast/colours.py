"""Rain as colours: a step for each doubling or so, as weather services show it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outsize.data.frames import UNKNOWN, Levels, to_levels

STEPS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # mm/h
_COLOURS = (
    (245, 247, 250),  # less than all of them
    (203, 224, 242),
    (150, 194, 232),
    (89, 155, 214),
    (38, 111, 184),
    (42, 157, 92),
    (242, 201, 60),
    (230, 115, 42),
    (170, 30, 70),
)
_UNKNOWN_COLOUR = (205, 205, 205)
_BETTER, _WORSE, _EVEN = np.array((11, 110, 143)), np.array((190, 60, 40)), np.array((246, 249, 251))


def palette() -> list[int]:
    """Return the colours as the palette of a picture: steps of rain, then what is unknown."""
    return [part for colour in (*_COLOURS, _UNKNOWN_COLOUR) for part in colour]


def as_steps(levels: Levels) -> NDArray[np.uint8]:
    """Return the number of each pixel's colour in the palette."""
    steps = np.searchsorted(to_levels(np.array(STEPS)), levels, side="right").astype(np.uint8)
    return np.where(levels <= UNKNOWN / 2, np.uint8(len(_COLOURS)), steps)


def as_colours(levels: Levels) -> NDArray[np.uint8]:
    """Return a picture (row, column, 3)."""
    return np.array((*_COLOURS, _UNKNOWN_COLOUR), np.uint8)[as_steps(levels)]


def as_signed(values: NDArray[np.floating], most: float) -> NDArray[np.uint8]:
    """Return a picture of numbers around 0: one colour above, another below, pale where it is 0."""
    share = np.clip(np.abs(values) / max(most, 1e-9), 0, 1)[..., None]
    towards = np.where(values[..., None] >= 0, _WORSE, _BETTER)
    shown: NDArray[np.uint8] = np.rint(_EVEN + (towards - _EVEN) * share).astype(np.uint8)
    return shown
