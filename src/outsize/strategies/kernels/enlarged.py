"""Bilinear enlarging whose backward is two matrix products.

Torch's own lets every number of the gradient be added to four places, where it waits for its neighbours. Enlarging is
a matrix for rows and one for columns, so backward is their transposes; memory stays channels last throughout:

    gradient   [n * out_rows, out_cols, channels]   -- columns -->   [n * out_rows, cols, channels]
          =    [n, out_rows, cols * channels]       -- rows ----->   [n, rows, cols * channels]

The order of sums is always the same, so two steps have the same bits.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from outsize.strategies.compat import is_fake

_aten = torch.ops.aten
Scales = tuple[float | None, float | None]  # of rows and columns, where a layer is given them
# A product multiplies each number of the gradient once for each column, nearly always by zero: worth it where a side
# has few pixels, and where channels fill a tile of a matrix product. Both limits are estimates.
_MOST_PX, _FEWEST_CHANNELS = 256, 32


def pays(x: Tensor, made: Tensor) -> bool:
    """Whether products are the faster backward of what was made of x."""
    enlarges = made.shape[2] >= x.shape[2] and made.shape[3] >= x.shape[3]
    return enlarges and max(x.shape[2:]) <= _MOST_PX and x.shape[1] >= _FEWEST_CHANNELS


def back_by_products(x: Tensor, made: Tensor, scales: Scales, *, align_corners: bool) -> Tensor:
    """Return what torch has made of x, but with another backward.

    Torch makes it where anybody can see it, so what recomputes tensors in backward finds it as ever.
    """
    return cast(Tensor, _Enlarged.apply(x, made.detach(), scales, align_corners))  # type: ignore[no-untyped-call, unused-ignore]


class _Enlarged(torch.autograd.Function):
    """Keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, made: Tensor, scales: Scales, align_corners: bool) -> Tensor:
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.scales, ctx.align_corners = scales, align_corners
        return made.detach()  # an input that is returned as it is could not be changed in place

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = _gradient(grad, ctx.shape, ctx.scales, align_corners=ctx.align_corners)
        return found.to(ctx.dtype), None, None, None


def _gradient(grad: Tensor, shape: torch.Size, scales: Scales, *, align_corners: bool) -> Tensor:
    num, channels, rows, cols = shape
    out_rows, out_cols = grad.shape[2:]
    of_rows = _weights_like(grad, rows, out_rows, scales[0], align_corners)
    of_cols = _weights_like(grad, cols, out_cols, scales[1], align_corners)
    lines = grad.permute(0, 2, 3, 1).flatten(0, 1)
    if lines.stride(2) != 1:  # as the product would do by itself: so that a step followed on shapes sees it
        lines = lines.contiguous()
    narrow = torch.bmm(of_cols.expand(len(lines), -1, -1), lines)
    made = torch.bmm(of_rows.expand(num, -1, -1), narrow.view(num, out_rows, cols * channels))
    # detached, for autograd adds to no gradient that is known as a view
    return made.view(num, rows, cols, channels).permute(0, 3, 1, 2).detach()


def _weights_like(grad: Tensor, side: int, out: int, scale: float | None, align_corners: bool) -> Tensor:
    if is_fake(grad):
        return grad.new_empty((side, out))
    key = side, out, scale, align_corners, grad.dtype, grad.device
    if key in _kept:
        return _kept[key]
    made = _weights(*key)
    # what is made while a step is recorded is part of it, and lies in its memory
    if not (grad.is_cuda and torch.cuda.is_current_stream_capturing()):
        _kept[key] = made
    return made


def _weights(
    side: int, out: int, scale: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the share of each of `out` results that comes from each of `side` numbers: torch's own, of unit rows.

    Of short numbers they are multiples of the least fraction of which those up to 1 can all be written: so the two
    shares of a result are exactly 1 together, and no gradient is lost or added. Each rounded for itself would drift.
    """
    exact = torch.float64 if dtype == torch.float64 else torch.float32  # in which torch computes shares
    unit = torch.eye(side, dtype=exact, device=device).view(1, side, side, 1)
    shares: Tensor = _aten.upsample_bilinear2d(unit, [out, 1], align_corners, scale, None)
    if dtype.itemsize < exact.itemsize:
        fraction = torch.finfo(dtype).eps / 2
        shares = (shares / fraction).round() * fraction
    return shares.reshape(side, out).to(dtype)


# for good: a step that is recorded as a CUDA graph reads them wherever they lie
_kept: dict[tuple[int, int, float | None, bool, torch.dtype, torch.device], Tensor] = {}
