"""Batch norm in training with the ReLU behind it, as one operation: it reads less memory, and keeps less."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outsize.strategies.compat import is_fake
from outsize.strategies.kernels.fused_layer import on_shapes
from outsize.strategies.kernels.norm import fused

_aten = torch.ops.aten


@on_shapes("fused_norm(Tensor x, Tensor weight, Tensor bias) -> (Tensor, Tensor, Tensor)")
def _forward_of_shapes(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


@on_shapes(
    "fused_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor mean, Tensor invstd, Tensor bias)"
    " -> (Tensor, Tensor, Tensor)"
)
def _backward_of_shapes(_: Tensor, x: Tensor, weight: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(rest[-1])


class FusedNorm(torch.autograd.Function):
    """Keeps its input and one mean and deviation of each channel; what ReLU set to zero is found again from them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor, Tensor],
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        """Return what is normed by its own statistics, and count them into the running ones."""
        y, mean, invstd = _forward(x, weight, bias, running, momentum, eps, relu=relu)
        ctx.save_for_backward(x, weight, mean, invstd, bias)
        ctx.eps, ctx.relu, ctx.version = eps, relu, y._version
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, weight and bias."""
        x, weight, mean, invstd, bias = ctx.saved_tensors
        found = _backward(grad, x, (mean, invstd, weight, bias), ctx.eps, relu=ctx.relu)
        return (*found, None, None, None, None)


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    momentum: float,
    eps: float,
    *,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fake(x):
        return _forward_of_shapes(x, weight, bias)
    if x.is_cuda:
        from outsize.strategies.kernels.norm import kernels as norm_kernels

        mean, invstd = norm_kernels.statistics(x, running, momentum, eps)
        return fused.normed(x, (mean, invstd, weight, bias), None, relu=relu), mean, invstd
    y, mean, invstd = _aten.native_batch_norm(x, weight, bias, *running, True, momentum, eps)
    return y.relu_() if relu else y, mean, invstd


def sums_of_channels(x: Tensor) -> Tensor:
    """Return the sum of each channel of a tensor on a GPU, in float32."""
    from outsize.strategies.kernels.norm import kernels as norm_kernels

    return norm_kernels.sums(x)


def _backward(grad: Tensor, x: Tensor, rows: Any, eps: float, *, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
    mean, invstd, weight, bias = rows
    # a part of a larger gradient, as that of a concatenation, is copied: on shapes alone too, for it takes memory
    grad = grad if grad.stride() == x.stride() else torch.empty_like(x).copy_(grad)
    if is_fake(x):
        return _backward_of_shapes(grad, x, weight, mean, invstd, bias)
    if x.is_cuda:
        from outsize.strategies.kernels.norm import kernels as norm_kernels

        of_x, of_weight, of_bias = norm_kernels.gradients(grad, x, rows, relu=relu)
        return of_x, of_weight.to(weight.dtype), of_bias.to(bias.dtype)
    if relu:
        grad = grad.masked_fill(fused.written(x, rows, None, relu=False) <= 0, 0)
    made: tuple[Tensor, Tensor, Tensor] = _aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, invstd, True, eps, (True, True, True)
    )
    return made
