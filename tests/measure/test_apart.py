"""Two outcomes of a step compared: what differs is found, wherever it is and whatever it is seen against."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from outsize.measure.apart import Outcome, apart, outcome_of


def _outcome() -> Outcome:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double()

    def step() -> dict[str, Tensor]:
        loss = model(torch.randn(2, 2, 8, 8, dtype=torch.float64)).square()[:, :, ::2].sum()
        loss.backward()
        return {"square": loss}

    return outcome_of(model, step)


def _changed(values: dict[str, Tensor], name: str, factor: float) -> dict[str, Tensor]:
    return {key: each * factor if key == name else each for key, each in values.items()}


def test_the_same_step_is_not_apart() -> None:
    found = apart(_outcome(), _outcome())
    assert (found.loss, found.gradients, found.buffers, found.most) == (0.0, 0.0, 0.0, "")
    assert found.largest == 0.0


@pytest.mark.parametrize(
    ("part", "name"), [("loss", "square"), ("gradients", "0.weight"), ("buffers", "1.running_mean")]
)
def test_a_difference_is_relative_and_named(part: str, name: str) -> None:
    plain = _outcome()
    ours = replace(plain, **{part: _changed(dict(getattr(plain, part)), name, 1 + 1e-6)})
    found = apart(ours, plain)
    assert getattr(found, part) == pytest.approx(1e-6, rel=1e-3)
    assert found.largest == getattr(found, part)
    assert found.most == name


def test_rounding_of_a_gradient_that_is_nothing_does_not_count() -> None:
    plain = _outcome()
    of_bias = plain.gradients["0.bias"].abs().max()
    assert of_bias < 1e-10 * plain.gradients["0.weight"].abs().max()  # a batch norm takes its mean away
    ours = replace(plain, gradients=_changed(dict(plain.gradients), "0.bias", 3.0))
    assert apart(ours, plain).gradients < 1e-10


def test_what_is_missing_or_no_number_is_infinitely_far() -> None:
    plain = _outcome()
    some = {name: each for name, each in plain.gradients.items() if name != "0.weight"}
    for ours, theirs in ((some, plain.gradients), (plain.gradients, some)):
        found = apart(replace(plain, gradients=ours), replace(plain, gradients=theirs))
        assert found.gradients == math.inf
        assert found.most == "0.weight"
    broken = replace(plain, gradients=_changed(dict(plain.gradients), "1.weight", math.nan))
    assert apart(broken, plain).gradients == math.inf
    assert apart(plain, broken).gradients == math.inf


def test_a_batch_counted_twice_is_seen() -> None:
    plain = _outcome()
    twice = _changed(dict(plain.buffers), "1.num_batches_tracked", 2)
    assert apart(replace(plain, buffers=twice), plain).buffers == 1.0
