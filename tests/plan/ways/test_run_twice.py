"""What a step does whose blocks run again, worked out: as it is when such a step is followed on shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from outsize.plan.cost import StepCost
from outsize.plan.times import host_calls
from outsize.plan.ways.blocks import list_blocks
from outsize.plan.ways.run_twice import run_twice
from outsize.planning.own_step import own_step, traced


class _Residual(nn.Module):
    """A block of three parts with a way around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.narrow = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """Return pictures and what the parts add to them."""
        found: Tensor = pictures + self.wide(self.narrow(pictures))
        return found


def _convolutions() -> tuple[nn.Module, Tensor]:
    parts = [nn.Conv2d(3, 32, 3, padding=1), *(_Residual(32) for _ in range(5)), nn.Conv2d(32, 4, 1)]
    return nn.Sequential(*parts), torch.randn(4, 3, 64, 64)


def _attention() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 5, enable_nested_tensor=False), torch.randn(8, 196, 64)


def _shared() -> tuple[nn.Module, Tensor]:
    block = _Residual(32)
    return nn.Sequential(nn.Conv2d(3, 32, 1), block, nn.ReLU(), block, nn.ReLU(), block), torch.randn(
        2, 3, 64, 64
    )


@pytest.mark.parametrize("make", [_convolutions, _attention, _shared])
def test_it_takes_what_the_step_takes_that_is_followed(make) -> None:  # type: ignore[no-untyped-def]
    model, example = make()
    step = own_step(model.train(), example, None, torch.optim.AdamW, None)
    cost = StepCost(traced(step))
    sets = [blocks.paths for blocks in list_blocks(cost, lambda _: 1.0)] or [("1",)]
    for paths in sets:
        worked_out, followed = StepCost(run_twice(cost, paths)), StepCost(traced(step, paths))
        assert followed.peak_bytes() < cost.peak_bytes()
        assert worked_out.peak_bytes() == pytest.approx(followed.peak_bytes(), rel=0.01)
        # but for views and the counters of batch norm
        calls = [sum(map(host_calls, each.facts.ops)) for each in (cost, worked_out, followed)]
        assert calls[0] < calls[1] <= calls[2]
        again = [op.flops for op in worked_out.facts.ops]
        assert sum(again) == sum(op.flops for op in followed.facts.ops)


def test_no_block_is_the_plain_step() -> None:
    model, example = _convolutions()
    facts = traced(own_step(model.train(), example, None, torch.optim.AdamW, None))
    assert run_twice(StepCost(facts), ()) == facts
