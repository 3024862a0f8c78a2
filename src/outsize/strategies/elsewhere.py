"""Weights that another rank holds: here they keep name, shape and place in the model, and take no memory."""

from __future__ import annotations

from torch import Tensor


def let_go(tensor: Tensor) -> None:
    """Free a weight's memory: one number stands for all of it."""
    tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)


def is_here(tensor: Tensor) -> bool:
    """Whether a weight has its numbers on this rank."""
    return tensor.numel() <= 1 or any(tensor.stride())
