"""What a step changed is put back as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outsize.measure.state.before import Before


def test_buffers_random_numbers_and_gradients_are_as_before_each_time() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    before = Before(model)
    for _ in range(2):
        mean = model[1].running_mean.clone()
        before.take()
        first = model(torch.randn(2, 3, 4, 4))
        first.sum().backward()
        assert not torch.equal(model[1].running_mean, mean)
        before.give_back()
        assert torch.equal(model[1].running_mean, mean)
        assert all(each.grad is None for each in model.parameters())
        assert torch.equal(
            model(torch.randn(2, 3, 4, 4)), first
        )  # the same pixels are drawn, and the same dropped


def test_buffers_that_a_step_replaces_makes_or_adds_are_as_before() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    mean = torch.ones(4)
    model.register_buffer("mean", mean)
    model.register_buffer("ramp", None)
    before = Before(model)
    before.take()
    model.mean = torch.zeros(4)
    mean.mul_(2)
    model.ramp = torch.ones(2)
    model.register_buffer("more", torch.ones(3))
    before.give_back()
    assert model.mean is mean
    assert mean.tolist() == [1.0] * 4
    assert dict(model._buffers) == {"mean": mean, "ramp": None}


def test_gradients_that_are_there_are_not_lost() -> None:
    model = nn.Conv2d(3, 4, 1)
    model(torch.ones(1, 3, 2, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="they would be lost"):
        Before(model).take()
