"""Another function in the place of a module's forward, for a while."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from outsize.strategies.replaced import forward_of, run_instead


def test_functions_lie_over_one_another_and_go_again() -> None:
    layer, x = nn.ReLU(), torch.tensor([-1.0, 2.0])

    def adding(more: float) -> Any:
        once = forward_of(layer)
        return lambda module, x: once(module, x) + more

    with run_instead(layer, adding(1.0)):
        with run_instead(layer, adding(10.0)):
            assert layer(x).tolist() == [11.0, 13.0]
        assert layer(x).tolist() == [1.0, 3.0]
    assert "forward" not in vars(layer)
    assert layer(x).tolist() == [0.0, 2.0]


def test_a_copy_that_is_made_inside_runs_itself() -> None:
    layer = nn.Linear(1, 1)
    once = forward_of(layer)
    with run_instead(layer, once):
        other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.fill_(2.0)
        other.bias.fill_(0.0)
        assert other(torch.ones(1)).tolist() == [2.0]
