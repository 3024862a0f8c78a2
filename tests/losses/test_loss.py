"""What holds for every loss: labels alone count, parts add up, precision is kept."""

from __future__ import annotations

import math

import pytest
import torch

from outsize.data.sample import IGNORE
from outsize.job import LOSS_NAMES
from outsize.losses import LOSSES, SETS, Weights, named_losses
from outsize.losses.loss import count_pixels, weights_on

OF_NUMBERS = {"rain", "plain_rain"}  # not of classes: see test_rain.py
EVERY = pytest.mark.parametrize("name", sorted({*LOSSES} - OF_NUMBERS))
WEIGHTS = pytest.mark.parametrize("weights", [None, (0.25, 1.0, 4.0)])


def _case(num: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(num, 3, 8, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (num, 8, 6), generator=generator).to(torch.uint8)
    labels[0, :5] = IGNORE
    labels[1, 2:, :] = 1
    return logits, labels


def test_a_job_may_name_every_loss_and_no_other() -> None:
    assert set(LOSS_NAMES) == {*LOSSES, *SETS}


def test_two_losses_are_two_terms() -> None:
    assert list(named_losses("cross_entropy+dice")) == ["cross_entropy", "dice"]
    assert list(named_losses("focal")) == ["focal"]


@EVERY
@WEIGHTS
def test_samples_add_up(name: str, weights: Weights) -> None:
    logits, labels = _case()
    loss = LOSSES[name](weights)
    parts = sum(float(loss.sum(logits[i : i + 1], labels[i : i + 1])) for i in range(4))
    assert parts == pytest.approx(float(loss.sum(logits, labels)), rel=1e-13)
    assert sum(loss.count(labels[i : i + 1]) for i in range(4)) == pytest.approx(loss.count(labels))


@EVERY
@WEIGHTS
def test_a_local_loss_adds_up_over_tiles_too(name: str, weights: Weights) -> None:
    logits, labels = _case()
    loss = LOSSES[name](weights)
    parts = sum(
        float(loss.sum(logits[:, :, rows, cols], labels[:, rows, cols]))
        for rows in (slice(0, 3), slice(3, 8))
        for cols in (slice(0, 4), slice(4, 6))
    )
    assert (parts == pytest.approx(float(loss.sum(logits, labels)), rel=1e-13)) is loss.local


@EVERY
@WEIGHTS
def test_ignored_pixels_get_no_gradient_and_change_nothing(name: str, weights: Weights) -> None:
    logits, labels = _case()
    loss = LOSSES[name](weights)
    changed = logits.clone()
    changed[0, :, :5] += 3 * torch.randn(3, 5, 6, dtype=torch.float64)
    assert float(loss.sum(changed, labels)) == float(loss.sum(logits, labels))
    logits.requires_grad_()
    loss.sum(logits, labels).backward()
    assert logits.grad is not None
    assert logits.grad[0, :, :5].abs().max() == 0
    assert logits.grad[0, :, 5:].abs().min() > 0


@EVERY
@WEIGHTS
def test_nothing_labelled_is_zero_of_zero(name: str, weights: Weights) -> None:
    labels = torch.full((1, 2, 2), IGNORE, dtype=torch.uint8)
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    loss = LOSSES[name](weights)
    total = loss.sum(logits, labels)
    total.backward()
    assert float(total.detach()) == 0.0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0
    assert loss.count(labels) == 0.0


@EVERY
@WEIGHTS
def test_gradients_are_those_of_the_sum(name: str, weights: Weights) -> None:
    logits, labels = _case(2)
    small = logits[:, :, 3:6, :2].clone().requires_grad_()
    loss = LOSSES[name](weights)
    assert torch.autograd.gradcheck(lambda x: loss.sum(x, labels[:, 3:6, :2]), (small,))


@pytest.mark.parametrize(("name", "each"), [("cross_entropy", math.log(2)), ("focal", math.log(2) / 4)])
def test_bf16_logits_are_summed_in_float32(name: str, each: float) -> None:
    logits = torch.zeros(1, 2, 512, 512, dtype=torch.bfloat16)
    total = LOSSES[name](None).sum(logits, torch.zeros(1, 512, 512, dtype=torch.uint8))
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(512 * 512 * each, rel=1e-4)


def test_bf16_shares_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 2, 512, 512, dtype=torch.bfloat16)
    total = LOSSES["dice"](None).sum(logits, torch.zeros(1, 512, 512, dtype=torch.uint8))
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(1 - 1 / 1.5, rel=1e-5)


def test_weights_stand_at_the_label_they_are_for() -> None:
    table = weights_on((0.5, 2.0), torch.device("cpu"), torch.float64)
    assert table.tolist() == [0.5, 2.0, *[0.0] * 254]
    labels = torch.tensor([[[0, 1], [1, IGNORE]]], dtype=torch.uint8)
    assert count_pixels(labels, (0.5, 2.0)) == 4.5
    assert count_pixels(labels, None) == 3.0
