"""Max pooling that keeps one byte for each result instead of its input and eight bytes for each result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outsize.strategies.compat import is_fake
from outsize.strategies.kernels.fused_layer import on_shapes

_aten = torch.ops.aten
_MOST = 15  # sides of a window whose places one byte can count


@on_shapes("fused_pool(Tensor x, int rows, int cols) -> (Tensor, Tensor)")
def _forward_of_shapes(x: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:2], rows, cols)
    made = x.new_empty(shape).contiguous(memory_format=torch.channels_last)
    return made, torch.empty_like(made, dtype=torch.uint8)


@on_shapes("fused_pool_backward(Tensor grad, Tensor place, int rows, int cols) -> Tensor")
def _backward_of_shapes(grad: Tensor, _: Tensor, rows: int, cols: int) -> Tensor:
    return grad.new_empty((*grad.shape[:2], rows, cols)).contiguous(memory_format=torch.channels_last)


class FusedPool(torch.autograd.Function):
    """Keeps where in its window each maximum was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        """Return the maxima of windows that all lie in the picture and its padding."""
        size = tuple((side + 2 * padding - kernel) // stride + 1 for side in x.shape[2:])
        y, place = _forward(x, kernel, stride, padding, size)
        ctx.save_for_backward(place)
        ctx.window, ctx.size = (kernel, stride, padding), x.shape
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the picture."""
        (place,) = ctx.saved_tensors
        kernel, stride, padding = ctx.window
        return _backward(grad, place, kernel, stride, padding, ctx.size), None, None, None


def can_pool(kernel: Any, stride: Any, padding: Any) -> bool:
    """Whether the kernels know a window: a square one, as pooling mostly has."""
    square = all(isinstance(each, int) for each in (kernel, stride, padding))
    return square and 1 <= kernel <= _MOST and stride >= 1 and 0 <= 2 * padding <= kernel


def _forward(x: Tensor, kernel: int, stride: int, padding: int, size: Any) -> tuple[Tensor, Tensor]:
    if is_fake(x):
        return _forward_of_shapes(x, *size)
    if x.is_cuda:
        from outsize.strategies.kernels.pool import kernels as pool_kernels

        made: tuple[Tensor, Tensor] = pool_kernels.pool(x, kernel, stride, padding, size)
        return made
    y, indices = _aten.max_pool2d_with_indices(x, kernel, stride, padding)
    rows, cols = _corners(size, stride, padding, x.device)
    place = (indices // x.shape[3] - rows) * kernel + indices % x.shape[3] - cols
    return y, place.to(torch.uint8)


def _backward(
    grad: Tensor, place: Tensor, kernel: int, stride: int, padding: int, size: torch.Size
) -> Tensor:
    if grad.stride() != place.stride():  # a part of a larger one
        grad = torch.empty_like(place, dtype=grad.dtype).copy_(grad)
    if is_fake(grad):
        return _backward_of_shapes(grad, place, *size[2:])
    if grad.is_cuda:
        from outsize.strategies.kernels.pool import kernels as pool_kernels

        made: Tensor = pool_kernels.gradient(grad, place, kernel, stride, padding, size)
        return made
    rows, cols = _corners(tuple(grad.shape[2:]), stride, padding, grad.device)
    wide = place.to(torch.int64)
    indices = (rows + wide // kernel) * size[3] + cols + wide % kernel
    like = grad.new_empty(size).contiguous(memory_format=torch.channels_last)
    spread: Tensor = _aten.max_pool2d_with_indices_backward(
        grad, like, [kernel, kernel], [stride, stride], [padding, padding], [1, 1], False, indices
    )
    return spread


def _corners(size: Any, stride: int, padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first row and column of every window."""
    rows, cols = (torch.arange(side, device=device) * stride - padding for side in size)
    return rows[:, None], cols[None, :]
