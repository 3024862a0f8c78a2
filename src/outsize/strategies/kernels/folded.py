"""Convolutions of a few rows far apart, run as such of neighbouring rows: the picture is seen folded.

cuDNN has no good kernel for some dilated columns of numbers. Every d-th row of a picture is a neighbour of the next one
if d rows are taken for one long row, which is the same memory, seen otherwise; gaps are gone, and no number is copied:

    row 0                                                  row 0 row 1 .. row d-1
    row 1        3 x 1, dilation d, padding d       ->     row d ..                     3 x 1, padding 1
    ..
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from outsize.strategies.compat import is_fake, seen_as
from outsize.strategies.kernels.fused_layer import on_shapes

_aten = torch.ops.aten
_SMALL = 8  # dilations up to this cuDNN runs well, as was seen on an H200; for 16 it has no good kernel


# by a name of its own: it is not replayed like other convolutions
@on_shapes(
    "fused_folded_convolution(Tensor x, Tensor weight, Tensor? bias, int padding, int dilation) -> Tensor"
)
def _convolved_of_shapes(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, dilation: int
) -> Tensor:
    made = torch.conv2d(x, weight, bias, padding=(padding * dilation, 0), dilation=(dilation, 1))
    return made.contiguous(memory_format=torch.channels_last)


def can_fold(conv: nn.Conv2d) -> bool:
    """Whether a convolution is one of rows far apart, with padding of as many or a multiple."""
    if conv.groups != 1 or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return False
    dilation = conv.dilation[0]
    is_column = conv.kernel_size[0] > 1 and conv.kernel_size[1] == 1 and conv.stride == (1, 1)
    return is_column and dilation > _SMALL and conv.padding[0] % dilation == 0 and conv.padding[1] == 0


def folds(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether a picture has as many rows as can be folded, and enough of them."""
    dilation, padding = conv.dilation[0], cast(int, conv.padding[0])
    enough = x.shape[2] + 2 * padding >= dilation * conv.kernel_size[0]
    return enough and x.shape[2] % dilation == 0


def folded_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, dilation: int) -> Tensor:
    """Return the convolution of rows that are `dilation` apart; `padding` counts folded rows."""
    return cast(Tensor, _Folded.apply(x, weight, bias, padding, dilation))  # type: ignore[no-untyped-call, unused-ignore]


class _Folded(torch.autograd.Function):
    """Keeps what a convolution keeps. A function of its own, for results of views may not be changed in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, dilation: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.dilation = padding, dilation
        ctx.bias_shape = None if bias is None else list(bias.shape)
        if is_fake(x):
            return _convolved_of_shapes(x, weight, bias, padding, dilation)
        made = torch.conv2d(_fold(x, dilation), weight, bias, padding=(padding, 0))
        return _unfold(made, dilation)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # as cuDNN would do by itself: so that a step that is followed on shapes sees it
        grad = _fold(grad.contiguous(memory_format=torch.channels_last), ctx.dilation)
        x, mask = _fold(x, ctx.dilation), list(ctx.needs_input_grad[:3])
        of_x, of_weight, of_bias = _aten.convolution_backward(
            grad, x, weight, ctx.bias_shape, [1, 1], [ctx.padding, 0], [1, 1], False, [0, 0], 1, mask
        )
        return None if of_x is None else _unfold(of_x, ctx.dilation), of_weight, of_bias, None, None


def _fold(x: Tensor, dilation: int) -> Tensor:
    num, channels, rows, cols = x.shape
    return x.view(num, channels, rows // dilation, dilation * cols)


def _unfold(made: Tensor, dilation: int) -> Tensor:
    # what was seen folded is nobody else's: torch need not know that this is a view
    num, channels, rows, cols = made.shape
    return seen_as(made, (num, channels, rows * dilation, cols // dilation))
