"""A step on made-up pixels: it trains a copy, on what a training would give it."""

from __future__ import annotations

import torch
from torch import nn

from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.job import TrainSection
from outsize.models import build_model
from outsize.plan.plan import unplanned
from outsize.tasks import task_of
from outsize.train.made_up import MadeUpStep, make_up_batch, make_up_step

_SEGMENT, _CPU = task_of("segment"), torch.device("cpu")


def _made_up(model: nn.Module, *, bf16: bool = False) -> MadeUpStep:
    section = TrainSection(batch=2, tile_px=16, optimizer="sgd")
    return make_up_step(model, _SEGMENT, section, (2, 2, 16, 16), 3, _CPU, bf16=bf16)


def _unet() -> nn.Module:
    return build_model("unet", num_classes=3, in_channels=2, levels=2, width=4)


def test_a_step_trains() -> None:
    made_up = _made_up(_unet())
    before = [each.detach().clone() for each in made_up.model.parameters()]
    made_up.runs(made_up.composed(unplanned()))()
    assert any(not torch.equal(*pair) for pair in zip(before, made_up.model.parameters(), strict=True))
    assert all(each.grad is None for each in made_up.model.parameters())


def test_the_model_that_is_given_stays_as_it_is() -> None:
    model = _unet().eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    made_up = _made_up(model, bf16=True)
    made_up.runs(made_up.composed(unplanned()))()
    assert not model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_batch_is_of_the_shape_that_is_asked_for() -> None:
    batch = make_up_batch(_unet(), _SEGMENT, "cross_entropy", (2, 2, 32, 48), 3)
    assert batch.images.shape == (2, 2, 32, 48)
    assert batch.targets.labels.unique().tolist() == [0, 1, 2]
    assert batch.valid.all()
    assert batch.totals == {"cross_entropy": 2 * 32 * 48}


def test_pixels_are_spread_as_asked_and_a_share_is_missing() -> None:
    statistics = BandStatistics((10.0, 1000.0), (1.0, 100.0))
    shape = (2, 2, 64, 64)
    batch = make_up_batch(
        _unet(), _SEGMENT, "cross_entropy", shape, 3, statistics=statistics, missing=0.1, seed=1
    )
    assert torch.allclose(batch.images.mean((0, 2, 3)), torch.tensor([10.0, 1000.0]), rtol=0.01)
    assert 0.05 < (batch.targets.labels == IGNORE).float().mean() < 0.15
    assert 0.05 < (~batch.valid).float().mean() < 0.15
    assert batch.totals["cross_entropy"] == (batch.targets.labels != IGNORE).sum()


def test_maps_are_made_before_any_step_runs() -> None:
    model = nn.Conv2d(3, 3, 1)  # two bands and the map
    model.input_maps = ("canny",)  # type: ignore[assignment]
    made_up = _made_up(model)
    assert made_up.batch.maps["canny"].shape == (2, 16, 16)
    made_up.runs(made_up.composed(unplanned()))()
