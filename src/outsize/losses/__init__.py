"""Named losses, each a sum over pixels and the count that the sum is divided by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from outsize.losses.cross_entropy import cross_entropy_sum, labelled_count

__all__ = ["LOSSES", "Loss"]


@dataclass(frozen=True)
class Loss:
    """A sum and its count, kept apart so that a batch may be split anywhere and added up again."""

    sum: Callable[[Tensor, Tensor], Tensor]  # logits, labels -> scalar
    count: Callable[[Tensor], float]  # labels -> what the sum is divided by


LOSSES: dict[str, Loss] = {"cross_entropy": Loss(cross_entropy_sum, labelled_count)}
