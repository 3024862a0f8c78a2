"""Cross-entropy as a sum and its count."""

from __future__ import annotations

import math

import pytest
import torch

from outsize.data.sample import IGNORE
from outsize.losses import LOSSES
from outsize.losses.cross_entropy import cross_entropy_sum, labelled_count


def _case() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (2, 4, 5), generator=generator).to(torch.uint8)
    labels[0, :2] = IGNORE
    return logits, labels


def test_sum_against_a_loop_over_pixels() -> None:
    logits, labels = _case()
    expected = 0.0
    for sample, row, col in torch.cartesian_prod(*(torch.arange(n) for n in labels.shape)).tolist():
        label = int(labels[sample, row, col])
        if label != IGNORE:
            scores = [math.exp(x) for x in logits[sample, :, row, col].tolist()]
            expected -= math.log(scores[label] / sum(scores))
    assert float(cross_entropy_sum(logits, labels)) == pytest.approx(expected, rel=1e-12)
    assert labelled_count(labels) == 2 * 4 * 5 - 2 * 5


def test_ignored_pixels_get_no_gradient() -> None:
    logits, labels = _case()
    logits.requires_grad_()
    cross_entropy_sum(logits, labels).backward()
    assert logits.grad is not None
    assert logits.grad[0, :, :2].abs().max() == 0
    assert logits.grad[0, :, 2:].abs().min() > 0


def test_bf16_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 2, 512, 512, dtype=torch.bfloat16)
    loss = cross_entropy_sum(logits, torch.zeros(1, 512, 512, dtype=torch.uint8))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(512 * 512 * math.log(2), rel=1e-4)


def test_nothing_labelled_is_zero_of_zero() -> None:
    labels = torch.full((1, 2, 2), IGNORE, dtype=torch.uint8)
    loss = LOSSES["cross_entropy"]
    assert float(loss.sum(torch.randn(1, 3, 2, 2), labels)) == 0.0
    assert loss.count(labels) == 0.0
