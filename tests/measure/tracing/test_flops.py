"""Arithmetic of operations, against numbers by hand."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.measure.tracing.step import trace_step


def _sum(model: nn.Module, images: Tensor) -> Tensor:
    total: Tensor = model(images).sum()
    return total


@pytest.mark.parametrize(
    ("layer", "forward"),
    [
        (nn.Conv2d(8, 8, 3, padding=1, groups=8), 2 * 2 * 36 * 8 * 9),
        (nn.Conv2d(8, 4, 3, stride=2, padding=1), 2 * 2 * 9 * 8 * 4 * 9),
        (nn.ConvTranspose2d(8, 4, 2, stride=2), 2 * 2 * 36 * 8 * 4 * 4),
        (nn.Sequential(nn.Flatten(2), nn.Linear(36, 5)), 2 * 2 * 8 * 36 * 5),
    ],
    ids=["depthwise", "strided", "transposed", "linear"],
)
def test_backward_does_twice_the_arithmetic_of_forward(layer: nn.Module, forward: int) -> None:
    model = nn.Sequential(nn.BatchNorm2d(8), layer)  # something before it that wants a gradient
    facts = trace_step(model, (2, 8, 6, 6), loss=_sum)
    assert sum(op.flops for op in facts.ops if not op.backward) == forward
    assert sum(op.flops for op in facts.ops if op.backward) == 2 * forward


def test_attention_is_counted() -> None:
    class Attend(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    facts = trace_step(Attend(), (2, 3, 16, 8), loss=None)
    assert sum(op.flops for op in facts.ops) == 2 * (2 * 3 * 16 * 16) * (8 + 8)
