"""Logits of a network that has one for two classes."""

from __future__ import annotations

import torch
from torch import Tensor


def of_two(logits: Tensor) -> Tensor:
    """Put a logit of zeros before an only one: the softmax of both is 1 - sigmoid and sigmoid, for every loss."""
    return torch.cat((torch.zeros_like(logits), logits), dim=1) if logits.shape[1] == 1 else logits
