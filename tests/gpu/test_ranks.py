"""Two ranks on one GPU, over gloo: replicas and pictures in parts with what a GPU alone does, equal to one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.ranks.gang import Gang
from tests.strategies.together import SIDE_PX, build, plan_of
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.plan.plan import Spatial, unplanned
from outsize.ranks import ALONE, World
from outsize.strategies.compose import compose
from outsize.strategies.replicate import look_across, share_out
from outsize.strategies.swap import Meter
from outsize.tasks.segment.terms import count_terms, make_loss_terms

_NUM = 4


def _as_parameters(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    dtype = next(module.parameters()).dtype
    return tuple(each.to(dtype) for each in args)


def step_of(
    world: World, names: tuple[str, ...], norm: str, parts: int = 1
) -> tuple[dict[str, Tensor], int, list[str]]:
    """Run a step on the GPU; return gradients, how many tensors were swapped, and what was told."""
    device, drawn = torch.device("cuda:0"), torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (_NUM, SIDE_PX, SIDE_PX), generator=drawn, dtype=torch.uint8)
    labels[1, :9] = 255
    images, targets = torch.randn(_NUM, 2, SIDE_PX, SIDE_PX, generator=drawn), ClassRasters(labels)
    valid = torch.ones(labels.shape, dtype=torch.bool)
    batch = Batch(images, valid, targets, count_terms("cross_entropy", targets)).to(device)
    model = build(norm).to(device)
    if "fuse" in names:
        model = model.float()  # which its kernels know
    model.register_forward_pre_hook(_as_parameters)
    share, plan, meter, told = None, unplanned(), Meter(), list[str]()
    if not world.is_alone:
        plan = plan_of(names, norm, _NUM * parts // world.size)
        share = share_out(world, _NUM, plan.micro_batches or 1, parts)
        numbers = share.numbers
        batch = batch.each(lambda tensor: tensor[numbers])
        look_across(model, share)
    if parts > 1:
        spatial = Spatial((2, 1), (SIDE_PX, SIDE_PX), 2)
        tile = spatial.tiles()[world.rank % 2]
        plan, batch = replace(plan, spatial=spatial), batch.crop(tile.read, tile.core).each(torch.clone)
    terms = make_loss_terms("cross_entropy", BandStatistics((0.0, 0.0), (1.0, 1.0)))
    step = compose(model, terms, plan, bf16=False, tell=told.append, meter=meter, share=share)
    step(batch, last=True)
    torch.cuda.synchronize()
    counters = meter.read()
    gradients = {name: each.grad.cpu() for name, each in model.named_parameters() if each.grad is not None}
    return gradients, 0 if counters is None else counters.num_in, told


@pytest.mark.parametrize(
    ("names", "norm", "parts"),
    [
        ((), "batch", 1),
        (("swap",), "none", 1),
        (("recompute", "swap"), "none", 1),
        (("micro_batches", "swap"), "none", 1),
        (("fuse",), "none", 1),
        (("fuse", "swap"), "none", 1),
        ((), "batch", 2),
        (("recompute",), "batch", 2),
    ],
    ids=str,
)
def test_two_ranks_on_one_gpu_are_the_plain_step(
    gang: Gang, names: tuple[str, ...], norm: str, parts: int
) -> None:
    alone: Any = step_of(ALONE, ("fuse",) if "fuse" in names else (), norm)
    near = 1e-4 if "fuse" in names else 1e-10
    for gradients, num_moved, _ in gang.run(2, step_of, names, norm, parts):
        for name, each in alone[0].items():
            assert float((gradients[name] - each).abs().max()) <= near * max(1.0, float(each.abs().max())), (
                name
            )
        assert bool(num_moved) == ("swap" in names)
