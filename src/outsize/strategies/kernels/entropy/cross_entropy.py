"""Cross-entropy that keeps nothing but the scores: neither a copy in float32 nor their logarithms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from outsize.losses.loss import Weights, precise, weights_on
from outsize.strategies.compat import is_fake
from outsize.strategies.kernels.fused_layer import on_shapes, suits
from outsize.strategies.kernels.later import Pending

_MOST_CLASSES = 255
_NO_LABEL = 255


@on_shapes("fused_cross_entropy(Tensor scores, Tensor labels) -> Tensor")
def _forward_of_shapes(scores: Tensor, _: Tensor) -> Tensor:
    return scores.new_empty((), dtype=torch.float32)


@on_shapes("fused_cross_entropy_backward(Tensor grad, Tensor scores, Tensor labels) -> Tensor")
def _backward_of_shapes(_: Tensor, scores: Tensor, __: Tensor) -> Tensor:
    return torch.empty_like(scores)


class FusedCrossEntropy(torch.autograd.Function):
    """Keeps scores and labels; shares of classes are found again from them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return the sum over labelled pixels."""
        ctx.save_for_backward(scores, labels)
        ctx.weights = weights
        if is_fake(scores):
            return _forward_of_shapes(scores, labels)
        if scores.is_cuda:
            from outsize.strategies.kernels.entropy import kernels as entropy_kernels

            total: Tensor = entropy_kernels.total(scores, labels, weights)
            return total
        return functional.cross_entropy(
            precise(scores), labels.long(), weights, ignore_index=_NO_LABEL, reduction="sum"
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the scores, in their own precision."""
        scores, labels = ctx.saved_tensors
        if is_fake(scores):
            return _backward_of_shapes(grad, scores, labels), None, None
        if scores.is_cuda:
            from outsize.strategies.kernels.entropy import kernels as entropy_kernels

            return entropy_kernels.gradient(grad, scores, labels, ctx.weights), None, None
        gaps = labels == _NO_LABEL
        own = labels.long().masked_fill(gaps, 0)
        weight = torch.ones_like(grad) if ctx.weights is None else ctx.weights[own]
        weight = (weight * grad).expand(own.shape).masked_fill(gaps, 0)
        share = precise(scores).softmax(1)
        share.scatter_add_(1, own[:, None], share.new_full((), -1).expand(own.shape)[:, None])
        return (share * weight[:, None]).to(scores.dtype), None, None


def summed(scores: Tensor, labels: Tensor, weights: Weights) -> Tensor | None:
    """Return the sum over labelled pixels by kernels of our own; None where they do not take it."""
    if type(scores) is Pending:  # made by slices: its own cross-entropy never holds all of them
        return None
    # what torch refuses, it shall refuse: the kernels would read beyond
    alike = labels.shape == scores.shape[:1] + scores.shape[2:] and labels.device == scores.device
    alike = alike and labels.dtype == torch.uint8 and labels.is_contiguous()
    if not alike or scores.shape[1] > _MOST_CLASSES or not suits(scores):
        return None
    known = weights is not None and not is_fake(scores)
    each = weights_on(weights, scores.device, torch.float32) if known and weights is not None else None
    if each is not None and not scores.is_cuda:
        each = each[: scores.shape[1]]
    found: Tensor = FusedCrossEntropy.apply(scores, labels, each)  # type: ignore[no-untyped-call, unused-ignore]
    return found
