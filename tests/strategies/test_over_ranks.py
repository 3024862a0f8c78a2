"""Ranks together with every other strategy that they go with: gradients and buffers of one plain process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.ranks.gang import Gang
from tests.strategies.together import SIDE_PX, build, plan_of, watch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.plan.plan import Plan, Spatial, unplanned
from outsize.ranks import ALONE, World
from outsize.strategies.compose import compose
from outsize.strategies.replicate import look_across, share_out
from outsize.tasks.segment.terms import count_terms, make_loss_terms

_NUM = 4
Found = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]


def _batch() -> Batch:
    drawn = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (_NUM, SIDE_PX, SIDE_PX), generator=drawn, dtype=torch.uint8)
    labels[1, :9] = 255
    images = torch.randn(_NUM, 2, SIDE_PX, SIDE_PX, generator=drawn)
    targets = ClassRasters(labels)
    return Batch(
        images, torch.ones(labels.shape, dtype=torch.bool), targets, count_terms("cross_entropy", targets)
    )


def _doubled(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each.double() for each in args)


def step_of(world: World, names: tuple[str, ...], norm: str, parts: int = 1) -> Found:
    """Run a step by the named strategies; return gradients, buffers, and what was seen of the strategies."""
    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch)
        model = build(norm)
        model.register_forward_pre_hook(_doubled)
        share, batch, plan = None, _batch(), unplanned()
        if not world.is_alone:
            plan = plan_of(names, norm, _NUM * parts // world.size)
            share = share_out(world, _NUM, plan.micro_batches or 1, parts)
            batch = batch.each(lambda tensor: tensor[share.numbers])
            look_across(model, share)
        if parts > 1:
            plan, batch = _in_parts(plan, batch, world)
        seen.num_block_runs = 0
        terms = make_loss_terms("cross_entropy", BandStatistics((0.0, 0.0), (1.0, 1.0)))
        step = compose(model, terms, plan, bf16=False, tell=seen.told.append, meter=seen.meter, share=share)
        step(batch, last=True)
        counters = seen.meter.read()
        done = {
            "told": seen.told,
            "blocks": seen.num_block_runs,
            "recomputed": sum(each.num_recomputed for each in seen.stats if each is not None),
            "moved": 0 if counters is None else counters.num_in,
            "fused": dict(seen.fused),
        }
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return gradients, {name: each.clone() for name, each in model.named_buffers()}, done


def _in_parts(plan: Plan, batch: Batch, world: World) -> tuple[Plan, Batch]:
    spatial = Spatial((2, 1), (SIDE_PX, SIDE_PX), 2)
    tile = spatial.tiles()[world.rank % 2]
    return replace(plan, spatial=spatial), batch.crop(tile.read, tile.core).each(torch.clone)


def _is_plain(alone: Found, found: Found) -> None:
    for name, each in alone[0].items():
        assert float((found[0][name] - each).abs().max()) <= 1e-12 * max(1.0, float(each.abs().max())), name
    for name, each in alone[1].items():
        assert torch.allclose(found[1][name].double(), each.double(), rtol=1e-12, atol=1e-14), name


@pytest.mark.parametrize(
    ("names", "norm"),
    [
        (("recompute",), "none"),
        (("recompute",), "batch"),
        (("swap",), "none"),
        (("micro_batches", "recompute"), "none"),
        (("recompute", "swap"), "none"),
        (("fuse",), "none"),
        (("fuse", "recompute"), "none"),
    ],
    ids=str,
)
def test_replicas_with_other_strategies_are_the_plain_step(
    gang: Gang, names: tuple[str, ...], norm: str
) -> None:
    alone = step_of(ALONE, (), norm)
    for found in gang.run(2, step_of, names, norm):
        _is_plain(alone, found)
        _was_done(names, found[2])


@pytest.mark.parametrize(
    ("names", "norm"),
    [(("recompute",), "none"), (("recompute",), "batch"), (("micro_batches",), "none")],
    ids=str,
)
def test_pictures_in_parts_with_other_strategies_are_the_plain_step(
    gang: Gang, names: tuple[str, ...], norm: str
) -> None:
    """Blocks that run again exchange their borders again, in backward."""
    alone = step_of(ALONE, (), norm)
    for found in gang.run(2, partial(step_of, parts=2), names, norm):
        _is_plain(alone, found)
        _was_done(names, found[2])


def _was_done(names: tuple[str, ...], done: dict[str, Any]) -> None:
    assert bool(done["blocks"]) == ("recompute" in names)
    assert bool(done["moved"]) == ("swap" in names)
    assert bool(done["fused"]) == ("fuse" in names)
