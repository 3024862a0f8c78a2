"""Transforms that hooks of saved tensors do not go with are seen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from outsize.strategies.blocks.transforms import is_transforming


def test_inside_and_outside_of_transforms() -> None:
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(is_transforming())
        return x.sum()

    x = torch.ones(3)
    look(x)
    torch.func.grad(look)(x)
    torch.func.vmap(look)(x)
    torch.func.jvp(look, (x,), (x,))
    with forward_ad.dual_level():
        look(x)
    look(x)
    assert seen == [False, True, True, True, True, False]
