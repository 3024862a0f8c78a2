"""Maps that are made of a picture or of its labels: where the picture changes (Canny), and where classes meet.

The same functions serve training, in whoever prepares samples, and prediction, on the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from outsize.data.sample import IGNORE, Targets
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters

CANNY, EDGES = "canny", "edges"

_LOW, _HIGH = 10.0, 100.0  # of |d/dx| + |d/dy| by Sobel's kernels, on a scale of 0 to 255
_TAN_22, _TAN_67 = 0.41421356, 2.41421356  # between a direction along an axis and one along a diagonal
_FOLLOWED_PX = 16  # how far a weak line is followed from a strong one
_STD_ON_SCALE = 64.0  # a standard deviation of pictures that are no bytes, on the scale of 0 to 255

# Pixels at distance 2 or less, one of each pair that lie opposite: (rows, columns).
_NEAR = ((0, 1), (0, 2), (1, -1), (1, 0), (1, 1), (2, 0))

REACH_PX = {CANNY: 2 + _FOLLOWED_PX, EDGES: 2}
"""How far each map looks around a pixel: Sobel's kernel and the thinning a pixel each, then what is followed."""


@dataclass(frozen=True)
class MapMaker:
    """Makes the named maps of a batch; it can be pickled."""

    names: tuple[str, ...]
    gains: tuple[float, ...]  # for each band: to the scale of 0 to 255

    def __call__(self, images: Tensor, valid: Tensor, targets: Targets | None = None) -> dict[str, Tensor]:
        """Return each map as bytes (sample, row, column)."""
        made = {}
        for name in self.names:
            if name == CANNY:
                made[name] = canny(images, valid, self.gains)
            else:
                assert isinstance(targets, ClassRasters)  # where classes meet is known of pixels alone
                made[name] = class_edges(targets.labels)
        return made


def map_maker(names: tuple[str, ...], dtype: str, statistics: BandStatistics) -> MapMaker | None:
    """Return what makes the named maps of pixels of a type; None where there are none to make."""
    return MapMaker(names, gains_to_bytes(dtype, statistics)) if names else None


def gains_to_bytes(dtype: str, statistics: BandStatistics) -> tuple[float, ...]:
    """Return what brings raw pixels to the scale of 0 to 255: nothing for bytes, else their standard deviation."""
    if dtype == "uint8":
        return (1.0,) * len(statistics.std)
    return tuple(_STD_ON_SCALE / std for std in statistics.std)


def reach_px(names: Iterable[str]) -> int:
    """Return how far the maps look around a pixel."""
    return max((REACH_PX[name] for name in names), default=0)


@torch.no_grad()
def canny(images: Tensor, valid: Tensor, gains: tuple[float, ...]) -> Tensor:
    """Return 1 on the thin lines along which raw pixels (sample, band, row, column) change most, else 0.

    Canny's method: Sobel's derivatives of the band that changes most, thinned to the largest across the line; lines
    above the high threshold, and from there on above the low one. A line is followed for 16 px and not without end,
    or no tile could know of it. Where a neighbour is not valid, or outside of the picture, there is no line: in a
    window that is read past the end of a scene it ends as in the whole.
    """
    height, width = images.shape[-2:]
    lines = torch.zeros(len(images), height, width, dtype=torch.uint8, device=images.device)
    if height < 3 or width < 3:
        return lines
    strength, down, right = _derivatives(images, valid, gains)
    peak = _thinned(strength, down, right)
    weak = peak & (strength > _LOW)
    found = peak & (strength > _HIGH)
    for _ in range(_FOLLOWED_PX):
        found = _grown(found) & weak
    lines[:, 1:-1, 1:-1] = found
    return lines


@torch.no_grad()
def class_edges(labels: Tensor) -> Tensor:
    """Return 1 where a pixel of another class is at most 2 px away, else 0, for labels (sample, row, column).

    Every class has edges; those of the picture, and of pixels whose class is not known, are none.
    """
    known = labels != IGNORE
    edges = torch.zeros_like(labels, dtype=torch.bool)
    height, width = labels.shape[-2:]
    for rows, cols in _NEAR:
        if height <= rows or width <= abs(cols):
            continue
        here = (..., slice(0, height - rows), slice(max(0, -cols), width - max(0, cols)))
        there = (..., slice(rows, height), slice(max(0, cols), width + min(0, cols)))
        meet = (labels[here] != labels[there]) & known[here] & known[there]
        edges[here] |= meet
        edges[there] |= meet
    return edges.to(torch.uint8)


def _derivatives(images: Tensor, valid: Tensor, gains: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return strength and both derivatives of the band that changes most, without the picture's outermost pixels."""
    # a number for each band and not a tensor, which would have to be copied to the device
    bands = [
        torch.where(valid, images[:, band].to(torch.float32), 0.0) * gain for band, gain in enumerate(gains)
    ]
    inside = valid[..., :-2, :] & valid[..., 1:-1, :] & valid[..., 2:, :]
    inside = inside[..., :-2] & inside[..., 1:-1] & inside[..., 2:]
    down, right = _sobel(bands[0])
    strength = down.abs() + right.abs()
    for band in bands[1:]:
        more_down, more_right = _sobel(band)
        more = more_down.abs() + more_right.abs()
        takes = more > strength
        strength = torch.where(takes, more, strength)
        down, right = torch.where(takes, more_down, down), torch.where(takes, more_right, right)
    return torch.where(inside, strength, 0.0), down, right


def _sobel(band: Tensor) -> tuple[Tensor, Tensor]:
    above, here, below = band[..., :-2, :], band[..., 1:-1, :], band[..., 2:, :]
    across = above + 2 * here + below
    change = below - above
    down = change[..., :-2] + 2 * change[..., 1:-1] + change[..., 2:]
    return down, across[..., 2:] - across[..., :-2]


def _thinned(strength: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Say where strength is the largest in the direction of the change; of equal ones the first."""
    around = torch.nn.functional.pad(strength, (1, 1, 1, 1))
    height, width = strength.shape[-2:]

    def at(rows: int, cols: int) -> Tensor:
        return around[..., 1 + rows : 1 + rows + height, 1 + cols : 1 + cols + width]

    steep, flat = down.abs(), right.abs()
    along_row = (strength > at(0, -1)) & (strength >= at(0, 1))
    along_col = (strength > at(-1, 0)) & (strength >= at(1, 0))
    falling = (strength > at(-1, -1)) & (strength > at(1, 1))
    rising = (strength > at(-1, 1)) & (strength > at(1, -1))
    along_diagonal = torch.where((down < 0) == (right < 0), falling, rising)
    slanted = torch.where(steep > _TAN_67 * flat, along_col, along_diagonal)
    return torch.where(steep < _TAN_22 * flat, along_row, slanted)


def _grown(lines: Tensor) -> Tensor:
    """Return lines and all pixels that touch them, also at corners."""
    tall = lines.clone()
    tall[..., 1:, :] |= lines[..., :-1, :]
    tall[..., :-1, :] |= lines[..., 1:, :]
    wide = tall.clone()
    wide[..., 1:] |= tall[..., :-1]
    wide[..., :-1] |= tall[..., 1:]
    return wide
