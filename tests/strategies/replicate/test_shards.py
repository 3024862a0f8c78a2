"""The optimizer's state in shards: the same weights to the bit, and each rank's state is its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.ranks.gang import Gang
from torch import Tensor, nn

from outsize.ranks import World
from outsize.strategies.replicate import shards, share_state
from outsize.train.optimizer import load_state_tensors, optimizer_of, state_tensors

_STEPS = 4
_SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.Linear(4, 2), nn.Linear(2, 2).double()
    )
    model[2].to(memory_format=torch.channels_last)
    return model


def _fill(model: nn.Module, step: int) -> None:
    """Give gradients as they are once all ranks have summed theirs; one weight of all gets none."""
    torch.manual_seed(step)
    for each in model.parameters():
        each.grad = torch.randn_like(each)
    model[3].bias.grad = None  # type: ignore[index, union-attr]


def _trained(world: World, name: str) -> dict[str, Any]:
    shards._SENT_BYTES = 400  # several messages
    model = _model()
    weights = list(model.parameters())
    optimizer = optimizer_of(weights, name, **_SETTINGS)
    kept = share_state(optimizer, world)
    for step in range(_STEPS):
        _fill(model, step)
        optimizer.step()
        if step == 1:  # saved and read back
            saved = {**state_tensors(optimizer), **world.collected(state_tensors(optimizer))}
            saved = world.broadcast(saved)
            optimizer = optimizer_of(weights, name, **_SETTINGS)
            kept = share_state(optimizer, world)
            load_state_tensors(optimizer, saved, kept)
    own = state_tensors(optimizer)
    return {
        "weights": model.state_dict(),
        "own": {int(key.partition(".")[0]) for key in own},
        "kept": {number for number, each in enumerate(weights) if kept(each)},
        "state": {**own, **world.collected(own)},
    }


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("size", [2, 3])
def test_weights_and_state_are_those_of_one_process(name: str, size: int, gang: Gang) -> None:
    model = copy.deepcopy(_model())
    optimizer = optimizer_of(model.parameters(), name, **_SETTINGS)
    for step in range(_STEPS):
        _fill(model, step)
        optimizer.step()
    found = gang.run(size, _trained, name)
    for each in found:
        _assert_same(each["weights"], model.state_dict())
        assert each["own"] <= each["kept"], "no state of another's weights"
    _assert_same(found[0]["state"], state_tensors(optimizer))
    kept = [each["kept"] for each in found]
    assert sum(map(len, kept)) == len(set.union(*kept)) == len(list(model.parameters()))
    assert all(kept)


def _assert_same(tensors: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        assert value.equal(others[name]), name
