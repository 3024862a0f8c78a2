"""Weights of other ranks keep their shape and take no memory."""

from __future__ import annotations

import torch
from torch import nn

from outsize.strategies.elsewhere import is_here, let_go


def test_a_weight_that_was_let_go_keeps_all_but_its_numbers() -> None:
    layer = nn.Conv2d(3, 8, 3).double()
    weight = layer.weight
    assert is_here(weight)
    let_go(weight)
    assert not is_here(weight)
    assert layer.weight is weight
    assert weight.shape == (8, 3, 3, 3)
    assert weight.requires_grad
    assert weight.dtype == torch.float64
    assert weight.untyped_storage().nbytes() == 8
    assert is_here(nn.Parameter(torch.zeros(())))
    assert is_here(nn.Parameter(torch.zeros(1)))
