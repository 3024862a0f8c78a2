"""Focal loss: right pixels count for little."""

from __future__ import annotations

import math

import pytest
import torch

from outsize.data.sample import IGNORE
from outsize.losses.focal import focal


@pytest.mark.parametrize("weights", [None, (0.5, 3.0, 7.0)])
def test_sum_against_a_loop_over_pixels(weights: tuple[float, ...] | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (1, 4, 5), generator=generator).to(torch.uint8)
    labels[0, 0] = IGNORE
    expected, count = 0.0, 0.0
    for row in range(1, 4):
        for col in range(5):
            label = int(labels[0, row, col])
            scores = [math.exp(x) for x in logits[0, :, row, col].tolist()]
            share = scores[label] / sum(scores)
            weight = weights[label] if weights else 1.0
            expected -= weight * (1 - share) ** 2 * math.log(share)
            count += weight
    loss = focal(weights)
    assert float(loss.sum(logits, labels)) == pytest.approx(expected, rel=1e-12)
    assert loss.count(labels) == pytest.approx(count)


def test_a_pixel_that_is_nearly_right_keeps_its_digits() -> None:
    logits = torch.tensor([12.0, 0.0]).view(1, 2, 1, 1)  # 1 - p = 6.1e-6: in float32 as 1 - p only 1 % exact
    wrong = 1 / (1 + math.exp(12))
    loss = focal(None).sum(logits, torch.zeros(1, 1, 1, dtype=torch.uint8))
    assert float(loss) == pytest.approx(wrong**2 * math.log1p(math.exp(-12)), rel=1e-4)


def test_gradients_stay_finite_at_both_ends() -> None:
    logits = torch.tensor([[200.0, 0.0], [-200.0, 0.0]]).view(2, 2, 1, 1).requires_grad_()
    focal(None).sum(logits, torch.zeros(2, 1, 1, dtype=torch.uint8)).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0].abs().max() == 0
    assert logits.grad[1, 0].item() == pytest.approx(-1.0)
