"""Losses of rain: known pixels alone, weighed by what came; parts add up."""

from __future__ import annotations

import pytest
import torch

from outsize.data.frames import UNKNOWN
from outsize.losses.loss import Loss
from outsize.losses.rain import plain_rain, rain


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 5000, (3, 2, 4, 5), generator=generator).to(torch.int16)
    numbers[0, :, 1] = UNKNOWN
    return torch.randn(numbers.shape, generator=generator, dtype=torch.float64), numbers


@pytest.mark.parametrize("loss", [rain(None), plain_rain(None)])
def test_parts_add_up(loss: Loss) -> None:
    answer, numbers = _batch()
    parts = [loss.sum(answer[each : each + 1], numbers[each : each + 1]) for each in range(3)]
    assert float(sum(parts)) == pytest.approx(float(loss.sum(answer, numbers)), rel=1e-12)
    halves = [loss.sum(answer[..., part], numbers[..., part]) for part in (slice(0, 2), slice(2, 5))]
    assert float(sum(halves)) == pytest.approx(float(loss.sum(answer, numbers)), rel=1e-12)
    assert sum(loss.count(numbers[each : each + 1]) for each in range(3)) == loss.count(numbers)
    assert loss.local


def test_against_a_loop_over_pixels() -> None:
    answer, numbers = _batch()
    steps = ((1099, 2), (2398, 3), (3045, 6), (4111, 12))
    total = weighed = 0.0
    for found, level in zip(answer.flatten().tolist(), numbers.flatten().tolist(), strict=True):
        if level == UNKNOWN:
            continue
        weight = max([1.0, *(each for limit, each in steps if level >= limit)])
        error = found - level / 1000
        total += weight * (abs(error) + error**2)
        weighed += weight
    assert float(rain(None).sum(answer, numbers)) == pytest.approx(total, rel=1e-12)
    assert rain(None).count(numbers) == weighed
    assert plain_rain(None).count(numbers) == 110


def test_what_is_unknown_has_no_gradient() -> None:
    answer, numbers = _batch()
    answer.requires_grad_()
    rain(None).sum(answer, numbers).backward()
    assert answer.grad is not None
    assert (answer.grad[0, :, 1] == 0).all()
    assert (answer.grad[1] != 0).all()
    assert rain(None).count(torch.full((1, 1, 2, 2), UNKNOWN)) == 1.0
