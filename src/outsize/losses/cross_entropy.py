"""Cross-entropy of class logits, summed over labelled pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from torch import Tensor
from torch.nn import functional

from outsize.data.sample import IGNORE
from outsize.losses.loss import Loss, Weights, count_pixels, precise, weights_on

# what to try first: logits, labels, weights -> the sum, or None where it does not take them
_instead: ContextVar[Callable[[Tensor, Tensor, Weights], Tensor | None] | None] = ContextVar(
    "instead", default=None
)


@contextmanager
def summed_by(instead: Callable[[Tensor, Tensor, Weights], Tensor | None]) -> Iterator[None]:
    """Inside the block the sum is left to a function, wherever that takes it."""
    before = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(before)


def cross_entropy(weights: Weights) -> Loss:
    """Return the weighted mean of -log p(label) over labelled pixels."""
    return Loss(partial(_sum, weights=weights), partial(count_pixels, weights=weights), local=True)


def _sum(logits: Tensor, labels: Tensor, weights: Weights) -> Tensor:
    instead = _instead.get()
    found = None if instead is None else instead(logits, labels, weights)
    if found is not None:
        return found
    scores = precise(logits)
    each = (
        weights_on(weights, scores.device, scores.dtype)[: scores.shape[1]] if weights is not None else None
    )
    return functional.cross_entropy(scores, labels.long(), each, ignore_index=IGNORE, reduction="sum")
