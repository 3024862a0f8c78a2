"""Cross-entropy of class logits, summed over labelled pixels."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from torch.nn import functional

from outsize.data.sample import IGNORE
from outsize.losses.loss import Loss, Weights, count_pixels, precise, weights_on


def cross_entropy(weights: Weights) -> Loss:
    """Return the weighted mean of -log p(label) over labelled pixels."""
    return Loss(partial(_sum, weights=weights), partial(count_pixels, weights=weights), local=True)


def _sum(logits: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    scores = precise(logits)
    each = (
        weights_on(weights, scores.device, scores.dtype)[: scores.shape[1]] if weights is not None else None
    )
    return functional.cross_entropy(scores, labels.long(), each, ignore_index=IGNORE, reduction="sum")
