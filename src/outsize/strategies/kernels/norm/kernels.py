"""The Triton kernels of `batch_norm`, for numbers that lie channels last; and sums of channels, which `joined` needs.

All see a tensor as rows of channels. Sums over rows are made in two steps, so that they come out the same each time:

    rows     |  channels  |
             |  program 0 |  ---> one row of sums  \\
             |  program 1 |  ---> one row of sums   >--- added up, in order
             |  program 2 |  ---> one row of sums  /
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor

from outsize.strategies.kernels.launch import launch

_TILE = 2048  # numbers that a program holds at once: 16 for each of its 128 threads
_WIDEST = 128  # channels of a tile
_PROGRAMS = 8  # for each processor of the device
_ROWS_AT_ONCE, _CHANNELS_AT_ONCE = 64, 16  # of sums that are added up
_MANY_TILES, _MANY = 4, 2**24  # that a program works off, where there are enough for all processors


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sums(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    x, first, second, origins, num_rows, num_groups, num_steps,
    by: tl.constexpr, wide: tl.constexpr, high: tl.constexpr,
):  # fmt: skip
    # Of the distance from the mean of the first rows and of its square: numbers far from zero lose no digits.
    num_channels = num_groups * by
    num_across = tl.cdiv(num_channels, wide)
    channel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    down = tl.program_id(0) // num_across
    inside = channel < num_channels
    row = tl.arange(0, high)
    at = row[:, None] * num_channels + channel[None, :]
    mask = (row < num_rows)[:, None] & inside[None, :]
    some = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    origin = tl.sum(some, 0) / tl.minimum(num_rows, high)
    if down == 0:
        tl.store(origins + channel, origin, mask=inside)
    origin = origin[None, :]
    once = tl.zeros([high, wide], tl.float32)
    squared = tl.zeros([high, wide], tl.float32)
    top = down.to(tl.int64) * num_steps * high
    for step in range(num_steps):
        start = top + step * high
        mask = (row < num_rows - start)[:, None] & inside[None, :]
        away = tl.load(x + start * num_channels + at, mask=mask, other=0.0).to(tl.float32) - origin
        away = tl.where(mask, away, 0.0)
        once += away
        squared += away * away
    tl.store(first + down * num_channels + channel, tl.sum(once, 0), mask=inside)
    tl.store(second + down * num_channels + channel, tl.sum(squared, 0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _added_up(  # type: ignore[no-untyped-def]
    first, second, num_down, num_channels, channel, inside, high: tl.constexpr, wide: tl.constexpr
):
    row = tl.arange(0, high)
    at = row[:, None] * num_channels + channel[None, :]
    one = tl.zeros([high, wide], tl.float32)
    other = tl.zeros([high, wide], tl.float32)
    for start in range(0, num_down, high):
        mask = (row < num_down - start)[:, None] & inside[None, :]
        one += tl.load(first + start * num_channels + at, mask=mask, other=0.0)
        other += tl.load(second + start * num_channels + at, mask=mask, other=0.0)
    return tl.sum(one, 0), tl.sum(other, 0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _statistics(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    origins, first, second, mean, invstd, running_mean, running_var, num_down, num_channels, num_rows, momentum, eps,
    high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * wide + tl.arange(0, wide)
    inside = channel < num_channels
    once, squared = _added_up(first, second, num_down, num_channels, channel, inside, high, wide)
    away = once / num_rows
    variance = tl.maximum(squared / num_rows - away * away, 0.0)
    middle = tl.load(origins + channel, mask=inside, other=0.0) + away
    tl.store(mean + channel, middle, mask=inside)
    tl.store(invstd + channel, 1.0 / tl.sqrt(variance + eps), mask=inside)
    before = tl.load(running_mean + channel, mask=inside, other=0.0)
    tl.store(running_mean + channel, before + momentum * (middle - before), mask=inside)
    before = tl.load(running_var + channel, mask=inside, other=0.0)
    unbiased = variance * (num_rows / (num_rows - 1.0))
    tl.store(running_var + channel, before + momentum * (unbiased - before), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gradient_sums(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    grad, x, mean, invstd, weight, bias, first, second, num_rows, num_groups, num_steps,
    by: tl.constexpr, relu: tl.constexpr, wide: tl.constexpr, high: tl.constexpr,
):  # fmt: skip
    num_channels = num_groups * by
    num_across = tl.cdiv(num_channels, wide)
    channel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    down = tl.program_id(0) // num_across
    inside = channel < num_channels
    m = tl.load(mean + channel, mask=inside, other=0.0)[None, :]
    s, w, b = m, m, m
    if relu:
        s = tl.load(invstd + channel, mask=inside, other=0.0)[None, :]
        w = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
        b = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    row = tl.arange(0, high)
    at = row[:, None] * num_channels + channel[None, :]
    once = tl.zeros([high, wide], tl.float32)
    along = tl.zeros([high, wide], tl.float32)
    top = down.to(tl.int64) * num_steps * high
    for step in range(num_steps):
        start = top + step * high
        mask = (row < num_rows - start)[:, None] & inside[None, :]
        away = tl.load(x + start * num_channels + at, mask=mask, other=0.0).to(tl.float32) - m
        g = tl.load(grad + start * num_channels + at, mask=mask, other=0.0).to(tl.float32)
        if relu:  # what forward set to zero, in the order that it was computed in
            g = tl.where(w * away * s + b <= 0, 0.0, g)
        once += g
        along += tl.where(mask, g * away, 0.0)
    tl.store(first + down * num_channels + channel, tl.sum(once, 0), mask=inside)
    tl.store(second + down * num_channels + channel, tl.sum(along, 0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gradient_rows(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    first, second, invstd, of_weight, of_bias, num_down, num_channels,
    high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * wide + tl.arange(0, wide)
    inside = channel < num_channels
    once, along = _added_up(first, second, num_down, num_channels, channel, inside, high, wide)
    s = tl.load(invstd + channel, mask=inside, other=0.0)
    tl.store(of_bias + channel, once, mask=inside)
    tl.store(of_weight + channel, along * s, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gradient(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    grad, x, mean, invstd, weight, bias, of_weight, of_bias, out, num_rows, num_groups,
    by: tl.constexpr, relu: tl.constexpr, wide: tl.constexpr, high: tl.constexpr, num_tiles: tl.constexpr,
):  # fmt: skip
    num_channels = num_groups * by
    num_across = tl.cdiv(num_channels, wide)
    channel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    inside = channel < num_channels
    m = tl.load(mean + channel, mask=inside, other=0.0)[None, :]
    s = tl.load(invstd + channel, mask=inside, other=0.0)[None, :]
    w = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    b = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    level = tl.load(of_bias + channel, mask=inside, other=0.0)[None, :] / num_rows
    slope = tl.load(of_weight + channel, mask=inside, other=0.0)[None, :] * s / num_rows
    top = (tl.program_id(0) // num_across).to(tl.int64) * (high * num_tiles)
    row = tl.arange(0, high)
    at = row[:, None] * num_channels + channel[None, :]
    for tile in tl.static_range(num_tiles):
        start = (top + tile * high) * num_channels
        mask = (row < num_rows - (top + tile * high))[:, None] & inside[None, :]
        away = tl.load(x + start + at, mask=mask, other=0.0).to(tl.float32) - m
        g = tl.load(grad + start + at, mask=mask, other=0.0).to(tl.float32)
        if relu:
            g = tl.where(w * away * s + b <= 0, 0.0, g)
        g = (g - level - away * slope) * (w * s)
        tl.store(out + start + at, g.to(out.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _plain_sums(  # type: ignore[no-untyped-def]
    x, sums, num_rows, num_groups, num_steps, by: tl.constexpr, wide: tl.constexpr, high: tl.constexpr
):
    num_channels = num_groups * by
    num_across = tl.cdiv(num_channels, wide)
    channel = tl.program_id(0) % num_across * wide + tl.arange(0, wide)
    down = tl.program_id(0) // num_across
    inside = channel < num_channels
    row = tl.arange(0, high)
    at = row[:, None] * num_channels + channel[None, :]
    total = tl.zeros([high, wide], tl.float32)
    top = down.to(tl.int64) * num_steps * high
    for step in range(num_steps):
        start = top + step * high
        mask = (row < num_rows - start)[:, None] & inside[None, :]
        total += tl.load(x + start * num_channels + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(sums + down * num_channels + channel, tl.sum(total, 0), mask=inside)


def sums(x: Tensor) -> Tensor:
    """Return the sum of each channel, in float32."""
    cut = _cut(x.shape, x.device.index)
    parts = torch.empty(cut.num_down, cut.num_channels, device=x.device)
    sizes = (cut.num_rows, cut.num_groups, cut.num_steps, cut.by, cut.wide, cut.high)
    launch(_plain_sums, (x.shape, x.dtype), cut.grid, x, parts, *sizes)
    return parts.sum(0)


def statistics(
    x: Tensor, running: tuple[Tensor, Tensor], momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Return mean and inverse deviation of each channel, and count them into the running ones."""
    cut = _cut(x.shape, x.device.index)
    first, second, mean, invstd = _rows_of_sums(cut, x)
    key = (x.shape, x.dtype)
    sizes = (cut.num_rows, cut.num_groups, cut.num_steps, cut.by, cut.wide, cut.high)
    launch(_sums, key, cut.grid, x, first, second, mean, *sizes)  # origins first, in the place of means
    launch(
        _statistics, (*key, running[0].dtype, momentum, eps), cut.few, mean, first, second, mean, invstd, *running,
        cut.num_down, cut.num_channels, cut.num_rows, momentum, eps, _ROWS_AT_ONCE, _CHANNELS_AT_ONCE,
    )  # fmt: skip
    return mean, invstd


def gradients(
    grad: Tensor, x: Tensor, rows: tuple[Tensor, Tensor, Tensor, Tensor], *, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of what was normed, of weight and of bias; `grad` lies in memory as `x` does."""
    cut = _cut(x.shape, x.device.index)
    first, second, of_weight, of_bias = _rows_of_sums(cut, x)
    key = (x.shape, x.dtype, grad.dtype, rows[2].dtype, rows[3].dtype, relu)
    launch(
        _gradient_sums, key, cut.grid, grad, x, *rows, first, second, cut.num_rows, cut.num_groups, cut.num_steps,
        cut.by, relu, cut.wide, cut.high,
    )  # fmt: skip
    launch(
        _gradient_rows, key, cut.few, first, second, rows[1], of_weight, of_bias, cut.num_down, cut.num_channels,
        _ROWS_AT_ONCE, _CHANNELS_AT_ONCE,
    )  # fmt: skip
    out = torch.empty_like(x)
    launch(
        _gradient, key, cut.whole, grad, x, *rows, of_weight, of_bias, out, cut.num_rows, cut.num_groups, cut.by,
        relu, cut.wide, cut.high, cut.num_tiles,
    )  # fmt: skip
    return out, of_weight, of_bias


@dataclass(frozen=True)
class _Cut:
    """How a tensor is cut into tiles, and how many of them a program works off."""

    num_channels: int
    num_rows: int
    by: int  # divides the channels, and the compiler knows it
    num_groups: int
    wide: int
    high: int
    num_steps: int  # tiles of a program that makes sums
    num_down: int
    num_tiles: int  # of a program that makes a gradient
    grid: tuple[int]  # programs that make sums, add them up, and make a gradient
    few: tuple[int]
    whole: tuple[int]


@cache
def _cut(shape: torch.Size, device: int | None) -> _Cut:
    num_channels = shape[1]
    num_rows = shape.numel() // num_channels
    by = min(16, num_channels & -num_channels)
    wide = min(_WIDEST, triton.next_power_of_2(num_channels))
    high = _TILE // wide
    num_across, num_down = -(-num_channels // wide), -(-num_rows // high)
    most = max(1, _PROGRAMS * _num_processors(device) // num_across)
    num_steps = -(-num_down // most)
    num_tiles = _MANY_TILES if shape.numel() >= _MANY else 1
    return _Cut(
        num_channels=num_channels,
        num_rows=num_rows,
        by=by,
        num_groups=num_channels // by,
        wide=wide,
        high=high,
        num_steps=num_steps,
        num_down=-(-num_down // num_steps),
        num_tiles=num_tiles,
        grid=(num_across * -(-num_down // num_steps),),
        few=(-(-num_channels // _CHANNELS_AT_ONCE),),
        whole=(num_across * -(-num_rows // (high * num_tiles)),),
    )


def _rows_of_sums(cut: _Cut, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return memory for two sums of each program, and for two rows of what comes of them."""
    sums = torch.empty(2, cut.num_down, cut.num_channels, device=like.device)
    # of their own: what is kept must not hold the sums, and a gradient no other
    first, second = (torch.empty(cut.num_channels, device=like.device) for _ in range(2))
    return sums[0], sums[1], first, second


def _num_processors(device: int | None) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
