"""A plan that says exact is refused where a norm looks across what it cuts, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.errors import PlanError
from outsize.plan.plan import Plan, Tiling
from outsize.strategies.compose import Step, compose

PLAN = Plan(purpose="train", batch=2, limit_bytes=1, peak_bytes=1, exact=True, why=())
TILES = {"tiles": Tiling(core_px=8, halo_before_px=(0, 0), halo_after_px=(0, 0), stride_px=1)}
PARTS = {"micro_batches": 2}


def _model(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.Sequential(norm, nn.ReLU()))


def _compose(norm: nn.Module, *, training: bool, **settings: Any) -> tuple[nn.Module, Step]:
    model = _model(norm).train(training)
    plan = replace(PLAN, **settings)
    return model, compose(model, lambda model, batch: {"loss": model(batch.images).sum()}, plan, bf16=False)


def _batch() -> Batch:
    flat = torch.ones(2, 16, 16)
    return Batch(torch.rand(2, 1, 16, 16), flat > 0, ClassRasters(flat.byte()), {"loss": 1.0})


@pytest.mark.parametrize(
    ("norm", "settings"),
    [
        (nn.BatchNorm2d(4), PARTS),
        (nn.BatchNorm2d(4), TILES),
        (nn.SyncBatchNorm(4), PARTS),
        (nn.GroupNorm(2, 4), TILES),
        (nn.InstanceNorm2d(4), TILES),
    ],
    ids=repr,
)
def test_a_norm_across_the_parts_is_named(norm: nn.Module, settings: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=rf"1\.0 \({type(norm).__name__}\)"):
        _compose(norm, training=True, **settings)
    _compose(norm, training=True, exact=False, **settings)


@pytest.mark.parametrize(
    ("norm", "training", "settings"),
    [
        (nn.BatchNorm2d(4), True, {}),
        (nn.BatchNorm2d(4), True, {"micro_batches": 1}),
        (nn.BatchNorm2d(4), False, PARTS | TILES),
        (nn.GroupNorm(2, 4), True, PARTS),
        (nn.Identity(), True, PARTS | TILES),
    ],
    ids=repr,
)
def test_what_does_not_look_across_is_let_through(
    norm: nn.Module, training: bool, settings: dict[str, Any]
) -> None:
    _, step = _compose(norm, training=training, **settings)
    assert step(_batch(), last=True)["loss"].isfinite()


def test_a_norm_set_to_training_later_is_found_at_the_next_step() -> None:
    model, step = _compose(nn.BatchNorm2d(4), training=False, **PARTS)
    step(_batch(), last=True)
    model.train()
    with pytest.raises(PlanError, match=r"1\.0 \(BatchNorm2d\)"):
        step(_batch(), last=True)


@pytest.mark.parametrize("settings", [PARTS, TILES], ids=repr)
def test_running_statistics_alone_make_no_norm_exact(settings: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="BatchNorm2d"):
        _compose(nn.BatchNorm2d(4, track_running_stats=False), training=False, **settings)
