"""Launches Triton kernels quickly: what a kernel is built for is looked up once for each shape, not at each launch.

By itself Triton looks at every argument of every launch (is it a multiple of 16, is it aligned) to find the kernel
that was built for arguments of the kind. A training step launches hundreds, always for the same few shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

_RUNNERS: dict[Hashable, Callable[..., object]] = {}
_ALIGNED_BYTES = 16


def launch(kernel: Any, shape: Hashable, grid: tuple[int], *args: Any) -> None:
    """Run a kernel; `shape` stands for all arguments that are not tensors, and for the types of those that are."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    index = tensors[0].device.index
    if index is not None and index != torch.cuda.current_device():
        with torch.cuda.device(index):
            launch(kernel, shape, grid, *args)
        return
    aligned = all(each.data_ptr() % _ALIGNED_BYTES == 0 for each in tensors)
    key = (kernel, shape, index) if aligned else None
    runner = None if key is None else _RUNNERS.get(key)
    if runner is not None:
        runner(*args)
        return
    built = kernel[grid](*args)
    if built is not None and key is not None:  # there is none where Triton only interprets
        _RUNNERS[key] = built[(grid[0], 1, 1)]
