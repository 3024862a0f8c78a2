"""The Triton kernels of `fused`: imported only where Triton is there, and built by their first launch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor

from outsize.strategies.kernels.launch import launch
from outsize.strategies.kernels.norm.fused import Rows

_TILE = 4096  # numbers that a program holds at once: 32 for each of its 128 threads
_MANY_TILES = 4  # that it works off one after another, where there are enough for all processors
_WIDEST = 256  # channels of a tile
_MANY = 2**24


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _channels_last(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    x, mean, invstd, weight, bias, other, out, num_pixels, num_groups,
    by: tl.constexpr, scaled: tl.constexpr, shifted: tl.constexpr, add: tl.constexpr, relu: tl.constexpr,
    wide: tl.constexpr, high: tl.constexpr, num_tiles: tl.constexpr,
):  # fmt: skip
    # A program reads the rows of its channels once, and goes down its pixels.
    #
    #             channels
    #           |  wide   |
    #   pixels  | tile 0  | high
    #           | tile 1  |
    num_channels = num_groups * by  # so that the compiler knows what divides it, and reads 16 bytes at once
    num_across = tl.cdiv(num_channels, wide)
    channel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    inside = channel < num_channels
    m = tl.load(mean + channel, mask=inside).to(tl.float32)[None, :]
    s = tl.load(invstd + channel, mask=inside).to(tl.float32)[None, :]
    w, b = m, m
    if scaled:
        w = tl.load(weight + channel, mask=inside).to(tl.float32)[None, :]
    if shifted:
        b = tl.load(bias + channel, mask=inside).to(tl.float32)[None, :]
    top = (tl.program_id(0) // num_across).to(tl.int64) * (high * num_tiles)
    row = tl.arange(0, high)
    at = row[:, None] * num_channels + channel[None, :]
    for tile in tl.static_range(num_tiles):
        start = (top + tile * high) * num_channels  # 64 bits for where a tile begins, 32 within it
        mask = (row < num_pixels - (top + tile * high))[:, None] & inside[None, :]
        y = tl.load(x + start + at, mask=mask).to(tl.float32) - m
        if scaled:
            y = w * y
        y = y * s
        if shifted:
            y = y + b
        if add:  # torch rounds batch norm before the sum
            y = y.to(out.dtype.element_ty).to(tl.float32)
            y = y + tl.load(other + start + at, mask=mask).to(tl.float32)
        if relu:
            y = tl.where(y <= 0, 0.0, y)  # what is not a number stays so
        tl.store(out + start + at, y.to(out.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _channels_first(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    x, mean, invstd, weight, bias, other, out, num_channels, num_groups,
    by: tl.constexpr, scaled: tl.constexpr, shifted: tl.constexpr, add: tl.constexpr, relu: tl.constexpr,
    wide: tl.constexpr,
):  # fmt: skip
    # A program has one channel of one sample, or a part of it.
    num_pixels = num_groups * by
    num_across = tl.cdiv(num_pixels, wide)
    plane = tl.program_id(0) // num_across
    channel = plane % num_channels
    pixel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    mask = pixel < num_pixels
    start = plane.to(tl.int64) * num_pixels
    y = tl.load(x + start + pixel, mask=mask).to(tl.float32) - tl.load(mean + channel).to(tl.float32)
    if scaled:
        y = tl.load(weight + channel).to(tl.float32) * y
    y = y * tl.load(invstd + channel).to(tl.float32)
    if shifted:
        y = y + tl.load(bias + channel).to(tl.float32)
    if add:
        y = y.to(out.dtype.element_ty).to(tl.float32)
        y = y + tl.load(other + start + pixel, mask=mask).to(tl.float32)
    if relu:
        y = tl.where(y <= 0, 0.0, y)
    tl.store(out + start + pixel, y.to(out.dtype.element_ty), mask=mask)


def normed(x: Tensor, rows: Rows, other: Tensor | None, out: Tensor, *, relu: bool) -> None:
    """Fill `out`; it, `x` and `other` lie in memory alike, without gaps: channels last, or plane after plane."""
    if x.numel() == 0:
        return
    mean, invstd, weight, bias = rows
    given: tuple[Any, ...] = (  # what is not there is never read
        x, mean, invstd, mean if weight is None else weight, mean if bias is None else bias,
        x if other is None else other, out,
    )  # fmt: skip
    flags = (weight is not None, bias is not None, other is not None, relu)
    num_samples, num_channels = x.shape[:2]
    num_pixels = x.numel() // (num_samples * num_channels)  # of a sample
    first = num_pixels > 1 and x.is_contiguous()
    key = (x.shape, *(each.dtype for each in given), flags)
    if first:
        by, wide, grid = _cut_first(x.shape)
        launch(_channels_first, key, grid, *given, num_channels, num_pixels // by, by, *flags, wide)
        return
    by, wide, high, num_tiles, grid = _cut_last(x.shape)
    sizes = (num_samples * num_pixels, num_channels // by, by)
    launch(_channels_last, key, grid, *given, *sizes, *flags, wide, high, num_tiles)


@cache
def _cut_first(shape: torch.Size) -> tuple[int, int, tuple[int]]:
    num_pixels = shape.numel() // (shape[0] * shape[1])
    wide = min(_TILE, triton.next_power_of_2(num_pixels))
    return _divides(num_pixels), wide, (shape[0] * shape[1] * -(-num_pixels // wide),)


@cache
def _cut_last(shape: torch.Size) -> tuple[int, int, int, int, tuple[int]]:
    num_channels = shape[1]
    num_rows = shape.numel() // num_channels
    wide = min(_WIDEST, triton.next_power_of_2(num_channels))
    high, num_tiles = _TILE // wide, _MANY_TILES if shape.numel() >= _MANY else 1
    grid = (-(-num_channels // wide) * -(-num_rows // (high * num_tiles)),)
    return _divides(num_channels), wide, high, num_tiles, grid


def _divides(number: int) -> int:
    """Return the largest power of two up to 16 that divides a number."""
    return min(16, number & -number)
