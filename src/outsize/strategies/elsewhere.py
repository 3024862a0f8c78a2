"""Weights that another rank holds: here they keep name, shape and place in the model, and take no memory."""

from __future__ import annotations

import torch
from torch import Tensor


def let_go(tensor: Tensor, device: torch.device | None = None) -> None:
    """Free a weight's memory: one number, on a device where that is given, stands for all of it."""
    tensor.data = tensor.data.new_zeros((), device=device or tensor.device).expand(tensor.shape)


def is_here(tensor: Tensor) -> bool:
    """Whether a weight has its numbers on this rank."""
    return tensor.numel() <= 1 or any(tensor.stride())
