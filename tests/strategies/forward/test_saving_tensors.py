"""What the plan names is recomputed; what it names in vain is told, once."""

from __future__ import annotations

import torch
from torch import nn

from outsize.plan.plan import Recompute
from outsize.strategies.forward.saving_tensors import saving
from outsize.strategies.saved.hooks import recomputable


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


IMAGES = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))


def test_a_plan_that_is_met_says_nothing() -> None:
    model, told = _net(), []
    keys = recomputable(model, lambda: model(IMAGES))
    assert keys
    forward = saving(model, Recompute(saved=tuple(keys)), None, told.append)
    for _ in range(2):
        with forward():
            loss = model(IMAGES).sum()
        loss.backward()
    assert told == []


def test_what_is_not_there_or_cannot_be_made_again_is_told_once() -> None:
    model, told = _net(), []
    asked = (("9", 0, 0), ("0", 0, 0))  # no such module; the input of all, which nothing makes
    forward = saving(model, Recompute(saved=asked), None, told.append)
    for _ in range(3):
        with forward():
            loss = model(IMAGES).sum()
        loss.backward()
    (text,) = told
    assert text.startswith("of 2 tensors that the plan recomputes, 1 are not saved, the first in 9")
    assert "1 cannot be recomputed and are kept, the first in 0" in text


def test_blocks_alone_need_no_watching() -> None:
    model = nn.Sequential(_net(), _net())
    wanted = torch.autograd.grad(model(IMAGES).sum(), list(model.parameters()))
    forward = saving(model, Recompute(blocks=("0",)), None, lambda text: None)
    with forward():
        loss = model(IMAGES).sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
