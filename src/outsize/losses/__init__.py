"""Named losses, each a sum and the count that the sum is divided by."""

from __future__ import annotations

from collections.abc import Callable

from outsize.losses.cross_entropy import cross_entropy
from outsize.losses.dice import dice
from outsize.losses.focal import focal
from outsize.losses.gscnn import gscnn
from outsize.losses.loss import Loss, Weights, WeightsByStride, of_stride
from outsize.losses.rain import plain_rain, rain

__all__ = ["LOSSES", "SETS", "Loss", "Weights", "WeightsByStride", "named_losses", "of_stride"]

LOSSES: dict[str, Callable[[Weights], Loss]] = {
    "cross_entropy": cross_entropy,
    "dice": dice,
    "focal": focal,
    "rain": rain,
    "plain_rain": plain_rain,
}
SETS: dict[str, Callable[[Weights], dict[str, Loss]]] = {"gscnn": gscnn}
"""Losses of several terms, which belong to one network."""


def named_losses(names: str, weights: Weights = None) -> dict[str, Loss]:
    """Return the losses that a job names, one or several joined by +; each is divided by its own count."""
    losses: dict[str, Loss] = {}
    for name in names.split("+"):
        losses |= SETS[name](weights) if name in SETS else {name: LOSSES[name](weights)}
    return losses
