"""Work of one operation: multiplications and additions, and bytes that it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Count = Callable[[tuple[Any, ...], Any], int]  # arguments and result

# Written without looking at what was there.
_OVERWRITES = {"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_"}
_NOTHING_MOVES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


def flops(kind: str, args: tuple[Any, ...], result: Any) -> int:
    """Count the floating-point operations of convolutions, matrix products and attention; of all others none.

    Those others wait for memory, not for arithmetic: their time is in the bytes they move.
    """
    count = _COUNTS.get(kind)
    if count is None and kind.startswith("_scaled_dot_product"):
        count = _attention_backward if kind.endswith("_backward") else _attention
    return count(args, result) if count else 0


def moved_bytes(kind: str, read: Iterable[Tensor], written: Iterable[Tensor]) -> int:
    """Add up the tensors that are read and those that are written, each once; a view moves nothing."""
    if kind in _NOTHING_MOVES:
        return 0
    into = list(written)
    if not into:
        return 0
    if kind in _OVERWRITES:
        read = [tensor for tensor in read if all(tensor is not each for each in into)]
    return sum(map(_touched_bytes, read)) + sum(map(_touched_bytes, into))


def _touched_bytes(tensor: Tensor) -> int:
    # a tensor expanded along a dimension is read many times and comes from memory once
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return math.prod(sizes) * tensor.element_size() if tensor.numel() else 0


def _convolution(args: tuple[Any, ...], result: Any) -> int:
    """input, weight, bias, stride, padding, dilation, transposed, output_padding, groups."""
    images, weight, transposed = args[0], args[1], args[6]
    # each output pixel is gathered by a kernel; transposed, each input pixel is spread by one
    pixels = math.prod(images.shape[2:] if transposed else result.shape[2:])
    return 2 * int(images.shape[0]) * int(pixels) * int(weight.numel())


def _fused_convolution(args: tuple[Any, ...], result: Any) -> int:
    """input, weight, bias and its window."""
    return 2 * int(args[0].shape[0]) * int(math.prod(result.shape[2:])) * int(args[1].numel())


def _convolution_backward(args: tuple[Any, ...], _: Any) -> int:
    """grad_output, input, weight, ..., transposed, output_padding, groups, output_mask."""
    grad, images, weight = args[:3]
    transposed, (of_input, of_weight, _) = args[7], args[10]
    # the gradients of input and weight multiply the same pairs of numbers as the way forward
    pixels = math.prod(images.shape[2:] if transposed else grad.shape[2:])
    once = 2 * int(images.shape[0]) * int(pixels) * int(weight.numel())
    return once * (bool(of_input) + bool(of_weight))


def _product(args: tuple[Any, ...], _: Any) -> int:
    """The last two tensors are multiplied: (..., n, k) with (..., k, m)."""
    left, right = [arg for arg in args if isinstance(arg, torch.Tensor)][-2:]
    return 2 * int(left.numel()) * (int(right.shape[-1]) if right.dim() > 1 else 1)


def _attention(args: tuple[Any, ...], _: Any) -> int:
    """Queries with keys, then weights with values."""
    query, key, value = args[:3]
    pairs = int(query.numel()) // int(query.shape[-1]) * int(key.shape[-2])
    return 2 * pairs * (int(query.shape[-1]) + int(value.shape[-1]))


def _attention_backward(args: tuple[Any, ...], _: Any) -> int:
    """The weights again, then the gradients of values, weights, queries and keys."""
    query, key, value = args[1:4]
    pairs = int(query.numel()) // int(query.shape[-1]) * int(key.shape[-2])
    return 2 * pairs * (3 * int(query.shape[-1]) + 2 * int(value.shape[-1]))


_COUNTS: dict[str, Count] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "fused_joined_convolution": _fused_convolution,
    "fused_folded_convolution": _fused_convolution,
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv"), _product),
}
