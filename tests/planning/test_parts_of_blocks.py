"""Networks of blocks with two halves: a budget is used, and the step is the plain one."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import outsize
from outsize.measure.memory import LiveBytes
from outsize.plan.cost import StepCost
from outsize.planning.own_step import own_step, traced

_NUM = 8


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        answer: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return answer


class _Block(nn.Module):
    """As of a vision transformer, with batch norm in one half so that there are buffers, and a learnt scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), _Attention(width)
        self.norm2 = nn.BatchNorm1d(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        half: Tensor = self.mlp(self.norm2(x.transpose(1, 2)).transpose(1, 2))
        return x + half * self.gamma


def _square(model: nn.Module, tokens: Tensor) -> Tensor:
    found: Tensor = model(tokens).square().mean()
    return found


def _step(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    loss = _square(model, tokens)
    loss.backward()
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    return [loss.detach(), *grads, *(each.clone() for each in model.buffers())]


@pytest.mark.parametrize(
    "share", [0.5, *(pytest.param(each, marks=pytest.mark.long) for each in (0.75, 0.33))]
)
def test_a_budget_is_used_and_the_step_stays_the_same(share: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(_Block(32) for _ in range(_NUM)))
    tokens = torch.randn(4, 512, 32)
    cost = StepCost(traced(own_step(model, tokens, _square, None, None)))
    lasting_bytes = cost.lasting_bytes
    wanted_bytes = lasting_bytes + share * (cost.peak_bytes() - lasting_bytes)
    expected = _step(copy.deepcopy(model), tokens)
    fit = outsize.within(model, tokens, int(wanted_bytes / 0.7), loss=_square, optimizer=None)
    with fit, LiveBytes() as live:
        found = _step(model, tokens)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    assert fit.plan.recompute is not None
    used = (fit.plan.peak_bytes - lasting_bytes) / (cost.peak_bytes() - lasting_bytes)
    assert share - 0.13 < used <= share  # not all blocks, where some are enough
    counted = live.peak_bytes + lasting_bytes
    assert counted == pytest.approx(fit.plan.peak_bytes, rel=0.05)
