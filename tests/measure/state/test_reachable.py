"""All that a forward can reach is found, told of when it was changed, and put back."""

from __future__ import annotations

import array
import contextvars
import ctypes
import functools
import itertools
import random
import threading
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from outsize.measure.state.before import left_as_it_was, reach_as_it_was
from outsize.measure.state.reachable import Reachable

COUNT = 0
SEEN: list[int] = []


class _Settings:
    num_calls = 0


class _Busy(nn.Module):
    shared: list[int] = []  # noqa: RUF012
    total = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count, self.mean = nn.Linear(2, 2), 0, torch.zeros(3)
        self.own, self.array, self.notes = torch.Generator(), np.zeros(2), {"calls": [1]}
        self.hidden, self.pair, self.space = [nn.Linear(2, 2)], (torch.ones(2),), types.SimpleNamespace(n=0)
        self.register_buffer("queue", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self._inner(x)

    def _inner(self, x: Tensor) -> Tensor:
        global COUNT  # noqa: PLW0603
        COUNT += 1
        SEEN.append(1)
        _Settings.num_calls += 1
        _Busy.total += 1
        self.shared.append(2)
        self.count += 1
        self.new = 5
        self.notes["calls"].append(2)
        self.space.n += 1
        self.mean.data.add_(1)
        self.array += 1
        torch.rand(1, generator=self.own)
        random.random()
        np.random.rand()  # noqa: NPY002
        with torch.no_grad():
            self.hidden[0].weight.mul_(2)
            self.layer.weight.data = self.layer.weight * 3
            self.queue.add_(1)
            self.pair[0].add_(1)
        found: Tensor = self.layer(x)
        return found


_ALL = {
    "count", "new", "mean", "own", "array", "notes.calls", "hidden.0.weight", "pair.0", "space.n", "queue", "weight",
    "COUNT", "SEEN", "_Settings._Settings.num_calls", "_Busy.total", "_Busy.shared", "Python's random",
    "numpy's random",
}  # fmt: skip


def test_each_thing_that_was_changed_is_named_and_put_back() -> None:
    model = nn.Sequential(_Busy())
    before = Reachable(model)
    assert before.changes() == []
    weight, numbers = model[0].layer.weight.clone(), random.getstate()
    memory = model[0].layer.weight.data_ptr()
    model(torch.ones(1, 2))
    found = before.changes()
    assert {each.name for each in found} == _ALL
    assert {each.module for each in found} == {"", "0", "0.layer"}
    before.put_back()
    assert before.changes() == []
    assert torch.equal(model[0].layer.weight, weight)
    assert model[0].layer.weight.data_ptr() == memory
    assert random.getstate() == numbers
    assert (COUNT, SEEN, _Settings.num_calls, model[0].count) == (0, [], 0, 0)
    assert not hasattr(model[0], "new")


def test_a_real_step_inside_leaves_nothing() -> None:
    model = nn.Sequential(_Busy()).eval()
    before = Reachable(model)
    with left_as_it_was(model):
        model(torch.ones(1, 2)).sum().backward()
        assert before.changes()
    assert before.changes() == []
    assert not model.training
    assert all(each.grad is None for each in model.parameters())


def test_what_is_given_is_looked_at_too() -> None:
    given = types.SimpleNamespace(found=[])
    before = Reachable(nn.Linear(2, 2), given)
    given.found.append(1)
    assert [each.name for each in before.changes()] == ["an argument.found"]
    before.put_back()
    assert given.found == []


BOX, ROW, OWN = ctypes.c_int(0), array.array("l", [0]), threading.local()
CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("calls", default=0)
SETTINGS: Any = types.ModuleType("settings")
SETTINGS.num_calls = OWN.num_calls = 0
STEPS = itertools.count()


class _Elsewhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        global MADE  # noqa: PLW0603
        MADE = 1
        BOX.value += 1
        ROW[0] += 1
        OWN.num_calls += 1
        SETTINGS.num_calls += 1
        CONTEXT.set(CONTEXT.get() + 1)
        return x


def test_what_is_counted_elsewhere_is_put_back() -> None:
    model = _Elsewhere()
    CONTEXT.set(3)
    with reach_as_it_was(model):
        model(torch.ones(1))
        assert SETTINGS.num_calls == 1
    assert (BOX.value, list(ROW), OWN.num_calls, SETTINGS.num_calls, CONTEXT.get()) == (0, [0], 0, 0, 3)
    assert "MADE" not in globals()


class _Draining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * next(STEPS)


def test_an_iterator_that_goes_on_is_told() -> None:
    model = _Draining()
    with pytest.warns(UserWarning, match="went on with an iterator: found STEPS"), reach_as_it_was(model):
        model(torch.ones(1))


@functools.cache
def _remembered(number: int) -> list[int]:
    return [number]


def test_what_a_cache_remembers_is_forgotten() -> None:
    class Remembers(nn.Module):
        @functools.lru_cache(maxsize=8)  # noqa: B019 (as people do)
        def own(self, number: int) -> list[int]:
            return [number]

        def forward(self, x: Tensor) -> Tensor:
            return x * _remembered(len(x))[0] * self.own(len(x))[0]

    model, x = Remembers(), torch.ones(2)
    before = Reachable(model)
    assert before.changes() == []
    model(x)
    assert [each.name for each in before.changes()] != []
    before.put_back()
    assert before.changes() == []
    assert _remembered.cache_info().currsize == Remembers.own.cache_info().currsize == 0
