"""Soft Dice: how little prediction and label of a class overlap, each class counting alike whatever its size."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from outsize.data.sample import IGNORE
from outsize.losses.loss import Loss, Weights, precise, weights_on


def dice(weights: Weights) -> Loss:
    """Return the weighted mean of 1 - Dice over all (sample, class) of which the sample has a labelled pixel.

    Dice = 2 sum(p y) / (sum(p) + sum(y)) over the labelled pixels of one sample. The Dice of a whole batch is
    a ratio of sums over all its samples, and no sum of what parts of the batch can know; that of one sample is
    known to whoever has the sample, and how many there are is known from the labels. So any split between
    samples is exact. A split of one sample into tiles is not: hence not local.
    """
    return Loss(partial(_sum, weights=weights), partial(_count, weights=weights), local=False)


def _sum(logits: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    shares = precise(logits).softmax(1)  # sample, class, row, column
    classes = torch.arange(shares.shape[1], device=labels.device, dtype=labels.dtype)
    is_label = labels[:, None] == classes[:, None, None]
    is_labelled = (labels != IGNORE)[:, None]
    # where, not a product: backward then keeps a mask of bytes and not another copy of the shares
    common = torch.where(is_label, shares, 0.0).sum((2, 3))
    predicted = torch.where(is_labelled, shares, 0.0).sum((2, 3))
    actual = is_label.sum((2, 3))
    missed = torch.where(actual > 0, 1 - 2 * common / (predicted + actual).clamp_min(1e-12), 0.0)
    if weights is not None:
        missed = missed * weights_on(weights, missed.device, missed.dtype)[: missed.shape[1]]
    return missed.sum()


def _count(labels: Tensor, weights: Weights) -> float:
    found: list[int] = []
    for sample in labels:
        num_px = torch.bincount(sample.flatten().long(), minlength=IGNORE + 1)[:IGNORE]
        found += torch.nonzero(num_px).flatten().tolist()
    return float(len(found)) if weights is None else float(sum(weights[each] for each in found))
