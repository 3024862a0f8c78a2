"""What fused layers have in common: which tensors their kernels take, and how they are one operation on shapes too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor

from outsize.strategies.compat import is_fake

_Shapes = TypeVar("_Shapes", bound=Callable[..., object])
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LIBRARY = torch.library.Library("outsize", "DEF")
_ON_CPU = False  # the same by torch's operations: to test it


def suits(x: Tensor) -> bool:
    """Whether the kernels take a tensor: pictures that lie channels last, on a GPU or as shapes alone."""
    if x.dim() != 4 or x.dtype not in _DTYPES or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    return x.numel() > x.shape[1] and (x.is_cuda or is_fake(x) or _ON_CPU)


@contextmanager
def standing_in() -> Iterator[None]:
    """Let torch's operations do on a CPU, inside the block, what the kernels do on a GPU: to compare the layers."""
    global _ON_CPU  # noqa: PLW0603 - tests set it, too
    before, _ON_CPU = _ON_CPU, True
    try:
        yield
    finally:
        _ON_CPU = before


def on_shapes(signature: str) -> Callable[[_Shapes], _Shapes]:
    """Make one operation of a function that makes shapes: what a step that is followed on shapes alone calls.

    So the step shows one operation there, as on the GPU, and not those that its shapes are made by.
    """
    name = signature.partition("(")[0]
    _LIBRARY.define(signature)

    def make(shapes: _Shapes) -> _Shapes:
        torch.library.register_fake(f"outsize::{name}", shapes, lib=_LIBRARY)
        return cast(_Shapes, getattr(torch.ops.outsize, name))

    return make
