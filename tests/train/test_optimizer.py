"""Optimizers by name, and their state there and back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from outsize.train.optimizer import load_state_tensors, make_optimizer, optimizer_of, state_tensors


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1))


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(2, 2, 6, 6, generator=generator)).square().mean().backward()
        optimizer.step()


def _make(name: str, model: nn.Module) -> torch.optim.Optimizer:
    return make_optimizer(model, name, lr=0.05, momentum=0.9, weight_decay=1e-2)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_state_round_trip_is_bitwise(name: str) -> None:
    whole = _model()
    whole_optimizer = _make(name, whole)
    _steps(whole, whole_optimizer, 0, 6)
    first = _model()
    first_optimizer = _make(name, first)
    _steps(first, first_optimizer, 0, 3)
    saved = {key: value.clone() for key, value in state_tensors(first_optimizer).items()}
    second = _model()
    second.load_state_dict(first.state_dict())
    second_optimizer = _make(name, second)
    load_state_tensors(second_optimizer, saved)
    _steps(second, second_optimizer, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))
    ended, expected = state_tensors(second_optimizer), state_tensors(whole_optimizer)
    assert ended.keys() == expected.keys()
    assert all(torch.equal(ended[key], expected[key]) for key in expected)


def test_without_the_state_the_bits_differ() -> None:
    model, other = _model(), _model()
    optimizer = _make("adamw", model)
    _steps(model, optimizer, 0, 3)
    other.load_state_dict(model.state_dict())
    _steps(model, optimizer, 3, 4)
    _steps(other, _make("adamw", other), 3, 4)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
def test_only_what_trains_is_given_to_it(name: str, kind: type) -> None:
    model = _model()
    model[0].requires_grad_(False)
    optimizer = _make(name, model)
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.05, 1e-2)
    assert len(group["params"]) == 4
    if name == "sgd":
        assert group["momentum"] == 0.9


def test_no_state_is_no_state() -> None:
    model = _model()
    optimizer = _make("adamw", model)
    load_state_tensors(optimizer, {})
    assert state_tensors(optimizer) == {}


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_state_from_a_file_lies_as_its_weights_do(name: str) -> None:
    """Fused kernels go over weights and state side by side; files know no memory formats."""
    torch.manual_seed(0)
    start = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 9, 9)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(images).square().sum().backward()
            optimizer.step()

    settings = {"name": name, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0, "on_gpu": True}
    models = [copy.deepcopy(start), copy.deepcopy(start)]
    optimizers = [optimizer_of(each.parameters(), **settings) for each in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer)
    saved = {key: value.contiguous() for key, value in state_tensors(optimizers[1]).items()}
    resumed = optimizer_of(models[1].parameters(), **settings)
    load_state_tensors(resumed, saved)
    for parameter, entries in resumed.state.items():
        same = [each for each in entries.values() if isinstance(each, torch.Tensor) and each.ndim == 4]
        assert all(each.stride() == parameter.stride() for each in same)
    train(models[0], optimizers[0])
    train(models[1], resumed)
    assert torch.equal(models[0].weight, models[1].weight)
