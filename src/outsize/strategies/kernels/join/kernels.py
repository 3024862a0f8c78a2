"""The Triton kernel of `joined`, for numbers that lie channels last: torch's own takes them one by one."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor

from outsize.strategies.kernels.launch import launch

_TILE = 4096  # numbers that a program holds at once


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _join(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    first, second, shift, out, num,
    of_first: tl.constexpr, of_second: tl.constexpr, is_shifted: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    pixel = at // (of_first + of_second)
    channel = at % (of_first + of_second)
    there = at < num
    is_first = channel < of_first
    is_second = there & (channel >= of_first)
    one = tl.load(first + pixel * of_first + channel, mask=there & is_first)
    other = tl.load(second + pixel * of_second + (channel - of_first), mask=is_second)
    if is_shifted:
        by = tl.load(shift + (channel - of_first), mask=is_second).to(tl.float32)
        other = (other.to(tl.float32) + by).to(other.dtype)
    tl.store(out + at, tl.where(is_first, one, other), mask=there)


def join(first: Tensor, second: Tensor, shift: Tensor | None = None) -> Tensor:
    """Return both side by side, the first's channels before the second's, to which `shift` is added; channels last."""
    shape = (first.shape[0], first.shape[1] + second.shape[1], *first.shape[2:])
    out = torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=torch.channels_last)
    num = out.numel()
    sizes = (num, first.shape[1], second.shape[1], shift is not None, _TILE)
    types = (first.dtype, None if shift is None else shift.dtype)
    shift = second if shift is None else shift  # which is then not looked at
    launch(_join, (sizes, types), (-(-num // _TILE),), first, second, shift, out, *sizes)
    return out
