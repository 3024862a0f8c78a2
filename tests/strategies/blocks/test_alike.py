"""A block that runs otherwise the second time is found out before its gradients are used, and kept from then on."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.strategies.blocks.alike import Checks, RunsOtherwise
from outsize.strategies.blocks.checkpointing import checkpointed
from outsize.strategies.step import Terms
from outsize.strategies.steps.recover import recovering


class _Drifts(nn.Module):
    """Does the same each time at first, and from one of its calls on counts them."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 64), nn.Linear(64, 8)
        self.after, self.count = after, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        found: Tensor = self.outer(self.inner(x).tanh() * max(1, self.count - self.after))
        return found


def _step(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    model(x).square().sum().backward()


def _steps(model: nn.Module, x: Tensor, number: int) -> None:
    for _ in range(number):
        _step(model, x)


@pytest.mark.parametrize("after", [0, 20], ids=["from the first call on", "later"])
def test_other_numbers_are_an_error_once_and_then_the_block_is_kept(after: int) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), _Drifts(after)), torch.randn(4, 8)
    with checkpointed(model, ["1"]):
        for _ in range(after // 2):
            _step(model, x)  # each runs it twice
        with pytest.raises(RunsOtherwise, match=r"module '1' gave something else .* found other numbers"):
            _steps(model, x, 2)
        model[1].count = 100 + after
        _step(model, x)
        found = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        assert model[1].count == 101 + after  # run once
    model[1].count = 100 + after
    _step(model, x)
    wanted = [each.grad for each in model.parameters() if each.grad is not None]
    assert all(map(torch.equal, found, wanted))


class _Alternates(nn.Module):
    """Gives what an iterator says."""

    def __init__(self, ways: Iterator[str]) -> None:
        super().__init__()
        self.layer, self.ways = nn.Linear(8, 8), ways

    def forward(self, x: Tensor) -> Tensor:
        way = next(self.ways)
        found: Tensor = self.layer(x)
        if way == "more":
            found = found.tanh().exp()
        elif way == "smaller":
            found = found[:2].tanh()
        return found.tanh()


@pytest.mark.parametrize("ways", [("more", ""), ("", "smaller")])
def test_fewer_or_smaller_tensors_are_named(ways: tuple[str, str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), _Alternates(iter(ways)))
    with checkpointed(model, ["1"]), pytest.raises(RunsOtherwise, match="module '1'"):
        _step(model, torch.randn(4, 8))


def test_noise_in_one_branch_is_found_within_a_few_calls() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.noise = nn.Linear(8, 8), nn.Linear(8, 8), 0.0

        def forward(self, x: Tensor) -> Tensor:
            drawn = torch.randn(8, generator=torch.Generator().manual_seed(next(seeds)))
            return self.one(x).tanh() * (self.noise * drawn + 1) + self.other(x).tanh()

    seeds = iter(range(1000))
    model, x = nn.Sequential(nn.Linear(8, 8), Fork()), torch.randn(4, 8)
    with checkpointed(model, ["1"]):
        for _ in range(5):
            _step(model, x)
        model[1].noise = 1.0
        with pytest.raises(RunsOtherwise):
            _steps(model, x, 10)


def test_not_all_is_looked_at_in_each_call() -> None:
    checks = Checks("block")
    num_looked = []
    for _ in range(40):
        call = checks.begin()
        with torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each), call.first():
            x = torch.randn(4, 8, requires_grad=True)
            for _ in range(6):
                x = x.tanh()
        samples = [form for form in call._first if form is not None and form[2] is not None]
        num_looked.append(len(samples))
    assert num_looked[:3] == [6, 6, 6]
    assert max(num_looked[3:32]) <= 2
    assert num_looked[32] == 6


def test_a_step_in_which_a_block_ran_otherwise_is_repeated() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), _Drifts(1000))
    images = torch.randn(4, 8)
    batch = Batch(images, torch.ones(4, dtype=torch.bool), ClassRasters(torch.zeros(4)), {})
    checks: dict[str, Checks] = {}

    def step(batch: Batch, *, last: bool) -> Terms:
        with checkpointed(model, ["2"], checks=checks):
            loss = model(batch.images).square().sum()
        loss.backward()
        return {"loss": loss.detach()}

    safe = recovering(step, model, lambda _: pytest.fail("memory is not short"))  # type: ignore[arg-type, return-value]
    safe(batch, last=True)
    model.zero_grad()
    model[2].after, model[2].count = 0, 1
    statistics = copy.deepcopy(model[1].state_dict())
    with pytest.warns(UserWarning, match="module '2' gave something else .* the step is repeated"):
        safe(batch, last=True)
    assert checks["2"].keeps
    found, count = [each.grad for each in model.parameters()], model[2].count
    assert all(each is not None for each in found)
    model[1].load_state_dict(statistics)
    model.zero_grad()
    model[2].count = count - 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images).square().sum().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(found, model.parameters(), strict=True))  # type: ignore[arg-type]
