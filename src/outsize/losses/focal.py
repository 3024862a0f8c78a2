"""Focal loss: cross-entropy in which pixels that are already right count for little."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from outsize.data.sample import IGNORE
from outsize.losses.loss import Loss, Weights, count_pixels, precise, weights_on

GAMMA = 2.0  # how quickly a pixel loses weight as it becomes right


def focal(weights: Weights) -> Loss:
    """Return the weighted mean of -(1 - p)^gamma log p over labelled pixels, p being that of the label."""
    return Loss(partial(_sum, weights=weights), partial(count_pixels, weights=weights), local=True)


def _sum(logits: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    classes = labels.long()
    surprise = functional.cross_entropy(precise(logits), classes, ignore_index=IGNORE, reduction="none")
    # expm1, for 1 - p of a pixel that is nearly right would be all rounding
    each = (-torch.expm1(-surprise)) ** GAMMA * surprise
    if weights is not None:
        each = each * weights_on(weights, each.device, each.dtype)[classes]
    return each.sum()
