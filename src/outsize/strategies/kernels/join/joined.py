"""A convolution over two tensors side by side whose backward never joins them, nor a gradient of both.

What a skip and its decoder bring together is the largest tensor of a step, and its gradient another as large. The
gradients of both halves are found apart, each from its own half, so neither is needed:

    forward    skip, up ------ joined ------ made        joined is gone when `made` is there
    backward   up, then its gradient; then skip, then its gradient

The bias of the layer that makes `up` can be left to the join, which reads every number anyway: torch would go over all
of them once more, one by one, and again to sum the bias's gradient. `up` then lies without it. What a constant adds to
the gradient of the weights, and its own gradient, both follow from how much of the gradient each cell of the kernel
sees inside of the picture: sums over all of it, less those of a border.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from outsize.strategies.compat import is_fake
from outsize.strategies.kernels.fused_layer import on_shapes

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


@on_shapes("fused_sums(Tensor x) -> Tensor")
def _sums_of_shapes(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], dtype=torch.float32)


class ConvWindow(NamedTuple):
    """How a convolution goes over a picture."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


NEIGHBOURS = ConvWindow((1, 1), (1, 1), (1, 1))


def can_shift(weight: Tensor, window: ConvWindow) -> bool:
    """Whether a join can add a constant to what comes up: for a kernel that sees a pixel and those around it."""
    return weight.shape[2:] == (3, 3) and window == NEIGHBOURS


def joined_convolution(
    skip: Tensor,
    up: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: ConvWindow,
    shift: Tensor | None = None,
) -> Tensor:
    """Return the convolution of both, the skip's channels first; `shift` is added to what comes up."""
    num_skip = skip.shape[1]
    given = None if shift is None else shift.detach()
    made = _OfSkip.apply(skip, weight[:, :num_skip], bias, up.detach(), weight.detach(), window, given)  # type: ignore[no-untyped-call, unused-ignore]
    return cast(Tensor, _OfUp.apply(made, up, weight[:, num_skip:], window, shift))  # type: ignore[no-untyped-call, unused-ignore]


class _OfSkip(torch.autograd.Function):
    """Makes the result, and gives the skip its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        skip: Tensor,
        part: Tensor,
        bias: Tensor | None,
        up: Tensor,
        weight: Tensor,
        window: ConvWindow,
        shift: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(skip, part)
        ctx.window, ctx.bias_shape = window, None if bias is None else list(bias.shape)
        return _convolved(_Halves(skip, up, shift), weight, bias, window)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        skip, part = ctx.saved_tensors
        found = _gradients(skip, part, grad, ctx.window, ctx.bias_shape, of_half=ctx.needs_input_grad[0])
        return (*found, None, None, None, None)


class _OfUp(torch.autograd.Function):
    """Passes the result on, and gives what came up its gradient."""

    @staticmethod
    def forward(
        ctx: Any, made: Tensor, up: Tensor, part: Tensor, window: ConvWindow, shift: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(up, part)
        # not among them: a few numbers, of which nothing is to be recomputed or moved
        ctx.window, ctx.shift = window, None if shift is None else shift.detach()
        ctx.mark_dirty(made)
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        up, part = ctx.saved_tensors  # once: each time they may be made or fetched again
        of_up, of_part, _ = _gradients(up, part, grad, ctx.window, None, of_half=ctx.needs_input_grad[1])
        del up
        if ctx.shift is None:
            return grad, of_up, of_part, None, None
        seen = _seen_by_cells(grad)[:, None]
        assert of_part is not None
        of_part += ctx.shift[:, None, None] * seen
        of_shift = (part * seen).sum((0, 2, 3))
        return grad, of_up, of_part, None, of_shift.to(ctx.shift.dtype)


class _Halves(NamedTuple):
    skip: Tensor
    up: Tensor
    shift: Tensor | None

    def some(self, samples: slice) -> _Halves:
        return _Halves(self.skip[samples], self.up[samples], self.shift)


def _convolved(halves: _Halves, weight: Tensor, bias: Tensor | None, window: ConvWindow) -> Tensor:
    """Return the convolution of both; of a large one for some samples at a time, so that little is ever joined."""
    skip, up, _ = halves
    num_samples = max(1, _MOST_BYTES * len(skip) // (skip.nbytes + up.nbytes))
    if num_samples >= len(skip):
        return _at_once(halves, weight, bias, window)
    made: Tensor | None = None
    for start in range(0, len(skip), num_samples):
        some = slice(start, start + num_samples)
        part = _at_once(halves.some(some), weight, bias, window)
        if made is None:
            shape = (len(skip), *part.shape[1:])
            made = torch.empty(shape, dtype=part.dtype, device=part.device, memory_format=torch.channels_last)
        made[some].copy_(part)
        del part  # before the next takes as much
    assert made is not None
    return made


def _at_once(halves: _Halves, weight: Tensor, bias: Tensor | None, window: ConvWindow) -> Tensor:
    if is_fake(halves.skip):
        return _convolved_of_shapes(_joined_of_shapes(halves.skip, halves.up), weight, bias, *window)
    return torch.conv2d(_join(*halves), weight, bias, *window)


def _gradients(
    half: Tensor,
    part: Tensor,
    grad: Tensor,
    window: ConvWindow,
    bias_shape: list[int] | None,
    *,
    of_half: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return those of one half, of its part of the weights, and of the bias."""
    # as cuDNN would do by itself: so that a step that is followed on shapes sees it
    grad, part = (each.contiguous(memory_format=torch.channels_last) for each in (grad, part))
    mask = [of_half, True, bias_shape is not None]
    found: tuple[Tensor | None, Tensor | None, Tensor | None] = _aten.convolution_backward(
        grad, half, part, bias_shape, *window, False, [0, 0], 1, mask
    )
    return found


def _seen_by_cells(grad: Tensor) -> Tensor:
    """Return (channel, row, column of a 3 x 3 kernel): the sum of the gradient where that cell lies in the picture."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    whole = _sums(grad)
    borders = [grad[:, :, 0], grad[:, :, -1], grad[..., 0], grad[..., -1]]
    top, bottom, left, right = (each.sum((0, 2), dtype=whole.dtype) for each in borders)
    nothing = torch.zeros_like(whole)
    rows, cols = (top, nothing, bottom), (left, nothing, right)
    corners = grad[:, :, :: max(1, grad.shape[2] - 1), :: max(1, grad.shape[3] - 1)].sum(0, dtype=whole.dtype)
    seen = []
    for place, row in enumerate(rows):
        for other, col in enumerate(cols):
            both = corners[:, -(place // 2), -(other // 2)] if place != 1 and other != 1 else nothing
            seen.append(whole - row - col + both)
    return torch.stack(seen, dim=1).view(-1, 3, 3)


def _sums(grad: Tensor) -> Tensor:
    if is_fake(grad):
        return _sums_of_shapes(grad)
    if grad.is_cuda:
        from outsize.strategies.kernels.norm import sums_of_channels

        return sums_of_channels(grad)
    return grad.sum((0, 2, 3), dtype=torch.promote_types(grad.dtype, torch.float32))


def _join(skip: Tensor, up: Tensor, shift: Tensor | None) -> Tensor:
    if skip.is_cuda and skip.dtype == up.dtype:
        from outsize.strategies.kernels.join import kernels as join_kernels

        return join_kernels.join(skip, up, shift)
    return torch.cat((skip, up if shift is None else up + shift[:, None, None]), dim=1)
