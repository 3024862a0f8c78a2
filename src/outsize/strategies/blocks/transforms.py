"""Says whether code runs under a transform that torch's hooks of saved tensors do not go with."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def is_transforming() -> bool:
    """Whether this is inside of `torch.func` (grad, vmap, jvp and so on), or of forward-mode derivatives."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
