"""The Triton kernels of `max_pool`, for numbers that lie channels last: one byte says where a maximum was."""

from __future__ import annotations

from functools import cache

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor

from outsize.strategies.kernels.launch import launch

_TILE = 2048  # numbers that a program holds at once
_WIDEST = 128  # channels of a tile


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _pool(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    x, out, place, num_out, num_groups, in_rows, in_cols, out_rows, out_cols,
    by: tl.constexpr, kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    wide: tl.constexpr, high: tl.constexpr,
):  # fmt: skip
    num_channels = num_groups * by
    num_across = tl.cdiv(num_channels, wide)
    channel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    inside = channel < num_channels
    pixel = (tl.program_id(0) // num_across).to(tl.int64) * high + tl.arange(0, high)
    col = pixel % out_cols
    row = pixel // out_cols % out_rows
    sample = pixel // out_cols // out_rows
    there = pixel < num_out
    best = tl.full([high, wide], float("-inf"), tl.float32)
    where = tl.full([high, wide], -1, tl.int32)
    for number in tl.static_range(kernel * kernel):
        in_row = row * stride - padding + number // kernel
        in_col = col * stride - padding + number % kernel
        valid = there & (in_row >= 0) & (in_row < in_rows) & (in_col >= 0) & (in_col < in_cols)
        at = ((sample * in_rows + in_row) * in_cols + in_col) * num_channels
        mask = valid[:, None] & inside[None, :]
        found = tl.load(x + at[:, None] + channel[None, :], mask=mask, other=float("-inf")).to(tl.float32)
        # the last that is not a number, else the first maximum, be it all there is
        better = (found > best) | (found != found) | (where < 0)  # noqa: PLR0124
        better = better & mask
        best = tl.where(better, found, best)
        where = tl.where(better, number, where)
    at = pixel * num_channels
    mask = there[:, None] & inside[None, :]
    tl.store(out + at[:, None] + channel[None, :], best.to(out.dtype.element_ty), mask=mask)
    tl.store(place + at[:, None] + channel[None, :], where.to(tl.uint8), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gradient(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    grad, place, out, num_in, num_groups, in_rows, in_cols, out_rows, out_cols,
    by: tl.constexpr, kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, reach: tl.constexpr,
    wide: tl.constexpr, high: tl.constexpr,
):  # fmt: skip
    # Each pixel asks the windows that it lies in, at most `reach` in each direction, whether it was their maximum.
    num_channels = num_groups * by
    num_across = tl.cdiv(num_channels, wide)
    channel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    inside = channel < num_channels
    pixel = (tl.program_id(0) // num_across).to(tl.int64) * high + tl.arange(0, high)
    col = pixel % in_cols + padding
    row = pixel // in_cols % in_rows + padding
    sample = pixel // in_cols // in_rows
    there = pixel < num_in
    total = tl.zeros([high, wide], tl.float32)
    for number in tl.static_range(reach * reach):
        out_row = row // stride - number // reach
        out_col = col // stride - number % reach
        in_row = row - out_row * stride
        in_col = col - out_col * stride
        valid = there & (out_row >= 0) & (out_row < out_rows) & (out_col >= 0) & (out_col < out_cols)
        valid = valid & (in_row < kernel) & (in_col < kernel)
        at = ((sample * out_rows + out_row) * out_cols + out_col) * num_channels
        mask = valid[:, None] & inside[None, :]
        where = tl.load(place + at[:, None] + channel[None, :], mask=mask, other=255).to(tl.int32)
        mine = (where == (in_row * kernel + in_col)[:, None]) & mask
        total += tl.load(grad + at[:, None] + channel[None, :], mask=mine, other=0.0).to(tl.float32)
    mask = there[:, None] & inside[None, :]
    at = pixel * num_channels
    tl.store(out + at[:, None] + channel[None, :], total.to(out.dtype.element_ty), mask=mask)


def pool(x: Tensor, kernel: int, stride: int, padding: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the maxima of windows, and where in its window each was."""
    shape = torch.Size((*x.shape[:2], *size))
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    place = torch.empty(shape, dtype=torch.uint8, device=x.device, memory_format=torch.channels_last)
    num_out, by, wide, high, grid = _cut(shape)
    window = (kernel, stride, padding)
    launch(
        _pool, (x.shape, x.dtype, window), grid, x, out, place, num_out, x.shape[1] // by, *x.shape[2:], *size, by,
        *window, wide, high,
    )  # fmt: skip
    return out, place


def gradient(grad: Tensor, place: Tensor, kernel: int, stride: int, padding: int, size: torch.Size) -> Tensor:
    """Return the gradient of what was pooled, of this size; `grad` lies in memory as `place` does."""
    out = torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
    num_in, by, wide, high, grid = _cut(size)
    window = (kernel, stride, padding)
    launch(
        _gradient, (size, grad.dtype, window), grid, grad, place, out, num_in, size[1] // by, *size[2:],
        *grad.shape[2:], by, *window, -(-kernel // stride), wide, high,
    )  # fmt: skip
    return out


@cache
def _cut(shape: torch.Size) -> tuple[int, int, int, int, tuple[int]]:
    """Return how many pixels are made, what divides the channels, the sides of a tile, and how many there are."""
    num_channels = shape[1]
    num_px = shape.numel() // num_channels
    wide = min(_WIDEST, triton.next_power_of_2(num_channels))
    high = _TILE // wide
    grid = (-(-num_channels // wide) * -(-num_px // high),)
    return num_px, min(16, num_channels & -num_channels), wide, high, grid
