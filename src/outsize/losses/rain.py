"""Losses of numbers of a forecast, summed over leads and pixels that are known; where more rain comes counts more.

Absolute and squared errors together, of logarithms of rain (data/frames): the squared one sees the large misses, the
absolute one does not forget what is right to a tenth. Weights grow with the rain that came (Shi et al., 2017), or a
model learns that dry is never far wrong.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from outsize.data.frames import SCALE, UNKNOWN
from outsize.losses.loss import Loss, Weights, precise

_STEPS = (
    (1099, 2.0),
    (2398, 3.0),
    (3045, 6.0),
    (4111, 12.0),
)  # levels of 1, 5, 10, 30 mm/h: what rain weighs there


def rain(weights: Weights) -> Loss:  # noqa: ARG001 (leads are not weighed)
    """Return the mean of |e| + e**2 over known pixels of all leads, weighed by the rain that came."""
    return Loss(partial(_sum, steps=_STEPS), partial(_count, steps=_STEPS), local=True)


def plain_rain(weights: Weights) -> Loss:  # noqa: ARG001 (leads are not weighed)
    """Return the mean of |e| + e**2 over known pixels of all leads."""
    return Loss(partial(_sum, steps=()), partial(_count, steps=()), local=True)


def _sum(answer: Tensor, numbers: Tensor, steps: tuple[tuple[int, float], ...]) -> Tensor:
    """Add up the errors of answers in units of the logarithm: answer and numbers (sample, lead, row, column)."""
    found = precise(answer)
    wanted = numbers.to(found.dtype) / SCALE
    error = torch.where(numbers > UNKNOWN // 2, found - wanted, 0.0)
    return (_weights(numbers, steps, found.dtype) * (error.abs() + error.square())).sum()


def _count(numbers: Tensor, steps: tuple[tuple[int, float], ...]) -> float:
    """Add up what known numbers weigh: counts of whole numbers first, so that their order does not matter."""
    total = float(torch.count_nonzero(numbers > UNKNOWN // 2))
    before = 1.0
    for level, weight in steps:
        total += (weight - before) * float(torch.count_nonzero(numbers >= level))
        before = weight
    return total or 1.0


def _weights(numbers: Tensor, steps: tuple[tuple[int, float], ...], dtype: torch.dtype) -> Tensor | float:
    if not steps:
        return 1.0
    weights = torch.ones(numbers.shape, dtype=dtype, device=numbers.device)
    for level, weight in steps:
        weights.masked_fill_(numbers >= level, weight)
    return weights
