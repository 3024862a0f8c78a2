"""Losses, gradients, buffers and all else of modules that do odd things are those of plain steps, at any budget."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from tests.planning.odd_blocks import COUNTS, GENERATOR, ODD
from torch import Tensor, nn

import outsize
from outsize.errors import PlanError

EXAMPLE = torch.randn(4, 32, 8, generator=torch.Generator().manual_seed(7))
_SHARES = (0.92, 0.75, 0.55)  # of what a plain step takes
# a few of each kind; `make test-all` runs all of them at all budgets
_QUICK = {
    "draws: a generator of its own", "draws: a branch by Python's random", "draws: torch's dropout",
    "keeps: an attribute", "keeps: a tensor through data", "keeps: a variable of the file", "given: a list",
    "given: a dataclass", "hooks: a forward hook inside", "others: momentum and a queue", "others: batch norm",
}  # fmt: skip


def _square(model: nn.Module, example: Tensor) -> Tensor:
    found: Tensor = model(example).square().mean()
    return found


def _fresh(make: Callable[[], nn.Module]) -> nn.Module:
    from tests.planning import odd_blocks

    odd_blocks.NUM_CALLS = COUNTS["calls"] = 0
    GENERATOR.manual_seed(1)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    model = make()
    for each in model.modules():
        type(each).__dict__.get("total") is not None and delattr(type(each), "total")
    return model


def _steps(model: nn.Module, fit: Any) -> list[Any]:
    """Return what three steps give: losses, gradients, buffers, and numbers in attributes."""
    found: list[Any] = []
    torch.manual_seed(1)
    with fit:
        for _ in range(3):
            model.zero_grad()
            loss = _square(model, EXAMPLE)
            loss.backward()
            found += [loss.detach(), *(each.grad for each in model.parameters())]
    found += [each.clone() for each in model.buffers()]
    return found + [
        (path, name, value if isinstance(value, int) else len(value))
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, int | list)
    ]


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def _states(model: nn.Module) -> list[Tensor]:
    return [each.clone() for each in (*model.parameters(), *model.buffers())]


def _run(name: str, shares: tuple[float, ...]) -> int:
    """Compare steps within budgets with plain ones; return how many budgets were enough."""
    make = ODD[name]
    expected = _steps(_fresh(make), nullcontext())
    plain_bytes = outsize.within(_fresh(make), EXAMPLE, "1GiB", optimizer=None, loss=_square).plan.peak_bytes
    num_fit = 0
    for share in shares:
        model = _fresh(make)
        before, numbers = _states(model), random.getstate()
        try:
            fit = outsize.within(model, EXAMPLE, int(share * plain_bytes / 0.7), optimizer=None, loss=_square)
        except PlanError:
            continue
        finally:
            assert all(map(torch.equal, _states(model), before)), "planning changed weights or buffers"
            assert random.getstate() == numbers
        num_fit += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _steps(model, fit)
        assert len(found) == len(expected)
        assert all(map(_same, found, expected)), share
    return num_fit


@pytest.mark.parametrize("name", [each for each in ODD if each in _QUICK])
def test_steps_of_a_few_are_the_plain_ones(name: str) -> None:
    _run(name, (0.7,))


@pytest.mark.long
@pytest.mark.parametrize("name", list(ODD))
def test_steps_are_the_plain_ones(name: str) -> None:
    num_fit = _run(name, _SHARES)
    assert num_fit >= 1
