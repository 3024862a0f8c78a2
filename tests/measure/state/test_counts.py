"""What modules count is set forward, as if they had run more often."""

from __future__ import annotations

import collections
import itertools
import types

import numpy as np
import torch
from torch import Tensor, nn

from outsize.measure.state import as_it_was
from outsize.measure.state.counts import counts_of, set_forward

RUNS = 0


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.fixed, self.seen, self.text, self.number = 0, 7, [0], "", np.int64(0)
        self.known, self.config = {"calls": 0}, types.SimpleNamespace(calls=0)
        self.last: collections.deque[int] = collections.deque(maxlen=50)
        self.steps = itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        global RUNS  # noqa: PLW0603
        RUNS += 1
        self.calls += 1
        self.number += 1
        self.known["calls"] += 1
        self.config.calls += 1
        self.text += "x"
        self.seen.append(self.calls)
        self.last.append(1)
        return x


def test_only_what_was_counted_goes_further() -> None:
    model = nn.Sequential(Counts())
    with as_it_was(model):
        before = counts_of(model)
        model(torch.ones(1))
        seen = []
        for name in set_forward(before):
            own = model[0]
            numbers = own.calls, own.number, own.known["calls"], own.config.calls, RUNS
            seen.append((*numbers, len(own.text), len(own.seen), len(own.last)))
            assert name in ("", "0")
        most = [max(each) for each in zip(*seen, strict=True)]
        assert most[:5] == [10**6] * 5
        assert most[5] > 900
        assert most[6] > 900
        assert most[7] == 50
        assert {99, 999} <= {each[0] for each in seen}
        assert model[0].fixed == 7
        assert before.gone_on() == []
    assert (model[0].calls, RUNS, model[0].seen, len(model[0].last)) == (0, 0, [0], 0)


def test_an_iterator_that_went_on_is_found() -> None:
    model = nn.Sequential(Counts())
    before = counts_of(model)
    next(model[0].steps)
    assert [each.module for each in before.gone_on()] == ["0"]
