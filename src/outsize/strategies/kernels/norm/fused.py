"""Batch norm with known statistics, the sum behind it and the ReLU behind that, as one pass over memory."""

from __future__ import annotations

import subprocess
import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

# mean, inverse deviation, weight and bias; all of one number for each channel
Rows = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fusing(kind: str) -> bool:
    """Whether a kind of device has fused kernels that build here; tells once where it should have and has not."""
    return _builds(kind)


@cache
def _builds(kind: str) -> bool:
    if kind != "cuda":
        return True  # as written below: to test it
    problem = _problem(kind)
    if problem is not None:
        warnings.warn(
            f"layers run by torch's kernels, which take longer and keep more: Triton cannot build others ({problem})",
            stacklevel=2,
        )
    return problem is None


def _problem(kind: str) -> str | None:
    """Build and run a kernel, and return what went wrong."""
    try:
        from triton.errors import TritonError  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        return f"{error}; install triton"
    try:
        x, row = torch.ones(1, 16, 1, 1, device=kind), torch.ones(16, device=kind)
        _kernels().normed(x, (row, row, row, row), x, torch.empty_like(x), relu=True)
    # no C compiler, no place for what is built, a driver that is too old
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError, TritonError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


def normed(x: Tensor, rows: Rows, other: Tensor | None, *, relu: bool) -> Tensor:
    """Return batch norm of x by given statistics, `other` added to it, ReLU if asked for; laid out as x is."""
    if x.device.type == "cuda" and x.dtype in _DTYPES and _dense(x):
        out = torch.empty_like(x)
        if other is not None and other.stride() != x.stride():
            other = torch.empty_like(x).copy_(other)
        _kernels().normed(x, rows, other, out, relu=relu)
        return out
    return written(x, rows, other, relu=relu)


def written(x: Tensor, rows: Rows, other: Tensor | None, *, relu: bool) -> Tensor:
    """Do as the kernels do, in torch's words: in the order of its own, rounded where they round."""
    shape = [1, -1] + [1] * (x.dim() - 2)
    mean, invstd, weight, bias = (None if row is None else row.view(shape) for row in rows)
    assert mean is not None
    assert invstd is not None
    out = x.to(mean.dtype) - mean  # float32 where x is bf16
    out = out if weight is None else weight * out
    out = out * invstd
    out = (out if bias is None else out + bias).to(x.dtype)
    out = out if other is None else out + other
    return out.relu() if relu else out


def _dense(x: Tensor) -> bool:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    return x.is_contiguous() or x.is_contiguous(memory_format=last)


@cache
def _kernels() -> ModuleType:
    from outsize.strategies.kernels.norm import fused_kernels as kernels

    return kernels
