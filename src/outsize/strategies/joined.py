"""A convolution over two tensors side by side whose way back never joins them, nor a gradient of both.

What a skip and its decoder bring together is the largest tensor of a step, and its gradient another as large. The
gradients of both halves are found apart, each from its own half, so neither is needed:

    forward    skip, up ------ joined ------ made        joined is gone when `made` is there
    backward   up, then its gradient; then skip, then its gradient
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from outsize.strategies.compat import is_fake
from outsize.strategies.fused_layer import on_shapes

_aten = torch.ops.aten
_MOST_BYTES = 2**28  # that are joined at once


@on_shapes("fused_join(Tensor skip, Tensor up) -> Tensor")
def _joined_of_shapes(skip: Tensor, up: Tensor) -> Tensor:
    return torch.cat((skip, up), dim=1)


# by a name of its own: it is not replayed like other convolutions
@on_shapes(
    "fused_joined_convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation)"
    " -> Tensor"
)
def _convolved_of_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    made = torch.conv2d(x, weight, bias, stride, padding, dilation)
    return made.contiguous(memory_format=torch.channels_last)


class Window(NamedTuple):
    """How a convolution goes over a picture."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


def joined_convolution(
    skip: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, window: Window
) -> Tensor:
    """Return the convolution of both, the skip's channels first."""
    num_skip = skip.shape[1]
    made = _OfSkip.apply(skip, weight[:, :num_skip], bias, up.detach(), weight.detach(), window)  # type: ignore[no-untyped-call, unused-ignore]
    return cast(Tensor, _OfUp.apply(made, up, weight[:, num_skip:], window))  # type: ignore[no-untyped-call, unused-ignore]


class _OfSkip(torch.autograd.Function):
    """Makes the result, and gives the skip its gradient."""

    @staticmethod
    def forward(
        ctx: Any, skip: Tensor, part: Tensor, bias: Tensor | None, up: Tensor, weight: Tensor, window: Window
    ) -> Tensor:
        ctx.save_for_backward(skip, part)
        ctx.window, ctx.bias_shape = window, None if bias is None else list(bias.shape)
        return _convolved(skip, up, weight, bias, window)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = _gradients(ctx, grad, ctx.bias_shape, of_half=ctx.needs_input_grad[0])
        return (*found, None, None, None)


class _OfUp(torch.autograd.Function):
    """Passes the result on, and gives what came up its gradient."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, up: Tensor, part: Tensor, window: Window) -> Tensor:
        ctx.save_for_backward(up, part)
        ctx.window = window
        ctx.mark_dirty(made)
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_up, of_part, _ = _gradients(ctx, grad, None, of_half=ctx.needs_input_grad[1])
        return grad, of_up, of_part, None


def _convolved(skip: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """Return the convolution of both; of a large one for some samples at a time, so that little is ever joined."""
    num_samples = max(1, _MOST_BYTES * len(skip) // (skip.nbytes + up.nbytes))
    if num_samples >= len(skip):
        return _at_once(skip, up, weight, bias, window)
    made: Tensor | None = None
    for start in range(0, len(skip), num_samples):
        some = slice(start, start + num_samples)
        part = _at_once(skip[some], up[some], weight, bias, window)
        if made is None:
            shape = (len(skip), *part.shape[1:])
            made = torch.empty(shape, dtype=part.dtype, device=part.device, memory_format=torch.channels_last)
        made[some].copy_(part)
        del part  # before the next takes as much
    assert made is not None
    return made


def _at_once(skip: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    if is_fake(skip):
        return _convolved_of_shapes(_joined_of_shapes(skip, up), weight, bias, *window)
    return torch.conv2d(_join(skip, up), weight, bias, *window)


def _gradients(
    ctx: Any, grad: Tensor, bias_shape: list[int] | None, *, of_half: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return those of one half, of its part of the weights, and of the bias."""
    half, part = ctx.saved_tensors
    # as cuDNN would do by itself: so that a step that is followed on shapes sees it
    grad, part = (each.contiguous(memory_format=torch.channels_last) for each in (grad, part))
    mask = [of_half, True, bias_shape is not None]
    found: tuple[Tensor | None, Tensor | None, Tensor | None] = _aten.convolution_backward(
        grad, half, part, bias_shape, *ctx.window, False, [0, 0], 1, mask
    )
    return found


def _join(skip: Tensor, up: Tensor) -> Tensor:
    if skip.is_cuda and skip.dtype == up.dtype:
        from outsize.strategies import join_kernels

        return join_kernels.join(skip, up)
    return torch.cat((skip, up), dim=1)
