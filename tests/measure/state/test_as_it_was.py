"""Whatever running a model changes in it is put back, in the very containers that others hold."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

from outsize.measure.state import as_it_was


class Rememberer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last, self.plain = 0, None, torch.zeros(2)
        self.lists: dict[str, list[int]] = {"a": [1]}
        self.queue, self.names = deque([1, 2], maxlen=2), {"x"}
        self.register_buffer("mean", torch.full((2,), float("nan")))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last, self.new = x, x
        self.plain += 1
        self.lists["a"].append(2)
        self.lists["b"] = [3]
        self.queue.append(3)
        self.names.add("y")
        self.mean = torch.ones(2)
        torch.rand(1)
        return x * random.random() * np.random.rand()  # noqa: NPY002


def test_everything_is_put_back() -> None:
    model = Rememberer()
    inner, mean = model.lists["a"], model.mean
    draws = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with as_it_was(model):
        model(torch.ones(2))
        model.eval()
    assert model.lists == {"a": [1]}
    assert model.lists["a"] is inner
    assert (model.calls, model.last, model.queue, model.names) == (0, None, deque([1, 2]), {"x"})
    assert not hasattr(model, "new")
    assert model.plain.tolist() == [0, 0]
    assert model.mean is mean
    assert bool(mean.isnan().all())
    assert model.training
    assert torch.equal(torch.get_rng_state(), draws[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == draws[1:]  # noqa: NPY002
