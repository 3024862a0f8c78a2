"""What modules count is set forward, as if they had run more often."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outsize.measure.state.counts import counts_of, set_forward


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.fixed, self.seen = 0, 7, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        return x


def test_only_what_was_counted_goes_further() -> None:
    model = nn.Sequential(Counts())
    before = counts_of(model)
    model(torch.ones(1))
    seen = [(name, model[0].calls, len(model[0].seen)) for name in set_forward(model, before)]
    assert {name for name, _, _ in seen} == {"0"}
    assert max(calls for _, calls, _ in seen) > 10**6
    assert max(length for _, _, length in seen) > 900
    assert model[0].fixed == 7
