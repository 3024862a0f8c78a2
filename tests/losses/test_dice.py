"""Soft Dice of each sample and class."""

from __future__ import annotations

import pytest
import torch

from outsize.data.sample import IGNORE
from outsize.losses.dice import dice


def _case() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 4, 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (3, 6, 5), generator=generator).to(torch.uint8)  # class 3 occurs nowhere
    labels[0, :2] = IGNORE
    labels[1][labels[1] == 2] = 0
    labels[2] = IGNORE
    return logits, labels


@pytest.mark.parametrize("weights", [None, (0.5, 3.0, 7.0, 2.0)])
def test_mean_against_a_loop_over_samples_and_classes(weights: tuple[float, ...] | None) -> None:
    logits, labels = _case()
    expected, count = 0.0, 0.0
    for sample in range(3):
        known = labels[sample] != IGNORE
        shares = logits[sample].softmax(0)[:, known]
        for label in range(4):
            truth = (labels[sample][known] == label).double()
            if truth.any():
                weight = weights[label] if weights else 1.0
                overlap = 2 * float((shares[label] * truth).sum())
                expected += weight * (1 - overlap / float(shares[label].sum() + truth.sum()))
                count += weight
    loss = dice(weights)
    assert float(loss.sum(logits, labels)) == pytest.approx(expected, rel=1e-12)
    assert loss.count(labels) == pytest.approx(count)
    if weights is None:
        assert count == 3 + 2


def test_a_perfect_prediction_costs_nothing_and_an_opposite_one_all() -> None:
    labels = (torch.arange(16).view(1, 4, 4) % 3 > 0).to(torch.uint8)
    right = torch.nn.functional.one_hot(labels.long(), 2).movedim(-1, 1) * 100.0
    loss = dice(None)
    assert float(loss.sum(right, labels)) / loss.count(labels) == pytest.approx(0.0, abs=1e-6)
    assert float(loss.sum(right.flip(1), labels)) / loss.count(labels) == pytest.approx(1.0, abs=1e-6)


def test_a_class_counts_alike_whatever_its_size() -> None:
    labels = torch.zeros(1, 32, 32, dtype=torch.uint8)
    labels[0, 0, 0] = 1
    all_zero = torch.zeros(1, 2, 32, 32)
    all_zero[:, 0] = 100.0
    loss = dice(None)
    assert float(loss.sum(all_zero, labels)) / loss.count(labels) == pytest.approx(0.5, abs=1e-3)


def test_tiles_of_one_sample_do_not_add_up() -> None:
    logits, labels = _case()
    loss = dice(None)
    parts = loss.sum(logits[:, :, :3], labels[:, :3]) + loss.sum(logits[:, :, 3:], labels[:, 3:])
    assert abs(float(parts - loss.sum(logits, labels))) > 0.1
    assert not loss.local
