"""Cross-entropy as a sum and its count."""

from __future__ import annotations

import math

import pytest
import torch

from outsize.data.sample import IGNORE
from outsize.losses.cross_entropy import cross_entropy


def _case() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (2, 4, 5), generator=generator).to(torch.uint8)
    labels[0, :2] = IGNORE
    return logits, labels


@pytest.mark.parametrize("weights", [None, (0.5, 3.0, 7.0)])
def test_sum_and_count_against_a_loop_over_pixels(weights: tuple[float, ...] | None) -> None:
    logits, labels = _case()
    expected, count = 0.0, 0.0
    for sample, row, col in torch.cartesian_prod(*(torch.arange(n) for n in labels.shape)).tolist():
        label = int(labels[sample, row, col])
        if label != IGNORE:
            weight = weights[label] if weights else 1.0
            scores = [math.exp(x) for x in logits[sample, :, row, col].tolist()]
            expected -= weight * math.log(scores[label] / sum(scores))
            count += weight
    loss = cross_entropy(weights)
    assert float(loss.sum(logits, labels)) == pytest.approx(expected, rel=1e-12)
    assert loss.count(labels) == pytest.approx(count, rel=1e-12)


def test_the_weighted_mean_is_that_of_torch() -> None:
    logits, labels = _case()
    weights = (0.5, 3.0, 7.0)
    loss = cross_entropy(weights)
    expected = torch.nn.functional.cross_entropy(
        logits, labels.long(), torch.tensor(weights, dtype=torch.float64), ignore_index=IGNORE
    )
    torch.testing.assert_close(loss.sum(logits, labels) / loss.count(labels), expected)


def test_one_class_for_each_picture_is_a_sum_over_pictures() -> None:
    logits = torch.tensor([[1.0, 2.0], [0.5, 0.0], [3.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([1, 0, IGNORE], dtype=torch.uint8)
    loss = cross_entropy(None)
    expected = torch.nn.functional.cross_entropy(logits[:2], labels[:2].long(), reduction="sum")
    torch.testing.assert_close(loss.sum(logits, labels), expected)
    assert loss.count(labels) == 2
