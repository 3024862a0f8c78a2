"""On a GPU: two processes train a model in two stages that neither of them has room for."""

from __future__ import annotations

import pytest
import torch
from tests.ranks.gang import Gang
from torch import Tensor
from torch.nn import functional

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.measure.graphs import export_training
from outsize.models import build_model
from outsize.plan.plan import Pipeline, PlannedStage
from outsize.ranks import World
from outsize.strategies.pipeline import WeightParts, cut_traced, layers_of, piped, share_among
from outsize.strategies.step import LossParts
from outsize.train.optimizer import optimizer_of

_NUM, _PX, _MICRO, _STEPS = 4, 64, 4, 3


def _model(levels: int, width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    options = {"levels": levels, "width": width, "norm": "none"}
    return build_model("unet", num_classes=3, in_channels=3, **options).double().train()


def _batch(device: torch.device) -> Batch:
    chance = torch.Generator().manual_seed(1)
    images = torch.randn(_NUM, 3, _PX, _PX, generator=chance, dtype=torch.float64)
    labels = torch.randint(0, 3, (_NUM, _PX, _PX), generator=chance, dtype=torch.uint8)
    totals = {"entropy": float(labels.numel())}
    return Batch(images, labels < 3, ClassRasters(labels), totals).to(device)


def _sums(_: torch.nn.Module, answer: Tensor, batch: Batch) -> dict[str, Tensor]:
    assert isinstance(batch.targets, ClassRasters)
    return {"entropy": functional.cross_entropy(answer, batch.targets.labels.long(), reduction="sum")}


_PARTS = LossParts(lambda _, batch: (batch.images,), _sums)


def _trained(net: torch.nn.Module, step: object, batch: Batch) -> list[float]:
    optimizer = optimizer_of(net.parameters(), "adamw", lr=1e-3, momentum=0.9, weight_decay=0.01)
    losses = []
    for _ in range(_STEPS):
        losses.append(float(step(batch, last=True)["entropy"]))  # type: ignore[operator]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def staged(
    world: World, device_name: str, levels: int, width: int, cap_bytes: int
) -> tuple[list[float], int, dict[str, Tensor]]:
    """Train as one of two stages with half of the weights each, and no more memory than so much."""
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(
            cap_bytes / torch.cuda.get_device_properties(device).total_memory, device
        )
    net = _model(levels, width)
    inputs = (_batch(torch.device("cpu")).images[:1],)
    traced = export_training(net, inputs)
    sizes = {
        path: sum(p.numel() for p in net.get_submodule(path).parameters(recurse=False))
        for path, _ in layers_of(traced)
    }
    reached, total, begin = 0, sum(sizes.values()), ("", 0)
    for path, call in layers_of(traced):
        if reached >= total / 2:
            begin = (path, call)
            break
        reached += sizes[path]
    pipeline = Pipeline((PlannedStage(0, ("", 0)), PlannedStage(1, begin)), _MICRO)
    share = share_among(world, pipeline, _NUM)
    owners = cut_traced(traced, net, inputs, [each.begins for each in pipeline.stages], {}, bf16=False).owners
    parts = WeightParts(net, {name: {stage} for name, stage in owners.items()}, share.stages)
    parts.hold(device)
    step = piped(net, _PARTS, pipeline, share, bf16=False)
    losses = _trained(net, step, _batch(device))
    held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    with parts.whole():
        weights = {name: each.detach().cpu().clone() for name, each in net.named_parameters()}
    return losses, held, weights if world.is_owner else {}


def _plain(device: torch.device, levels: int, width: int) -> tuple[list[float], dict[str, Tensor]]:
    net = _model(levels, width).to(device)

    def step(batch: Batch, *, last: bool) -> dict[str, Tensor]:
        sums = _PARTS(net, batch)
        share = sums["entropy"] / batch.totals["entropy"]
        share.backward()
        return {"entropy": share.detach()}

    losses = _trained(net, step, _batch(device))
    return losses, {name: each.detach().cpu() for name, each in net.named_parameters()}


@pytest.mark.parametrize("levels", [6])
def test_a_model_that_no_process_has_room_for(levels: int) -> None:
    assert torch.cuda.is_available()
    width = 48
    state_bytes = 4 * 8 * sum(each.numel() for each in _model(levels, width).parameters())
    cap_bytes = int(0.8 * state_bytes)  # of weights, gradients and what AdamW keeps: too little for a process
    gang = Gang(2)
    try:
        answers = gang.run(2, staged, "cuda:0", levels, width, cap_bytes)
    finally:
        gang.close()
    print({"state": state_bytes, "cap": cap_bytes, "held": [held for _, held, _ in answers]})
    losses, weights = _plain(torch.device("cuda:0"), levels, width)
    for own, held, _ in answers:
        assert held < cap_bytes < state_bytes
        assert own == pytest.approx(losses, rel=1e-9)
    for name, each in weights.items():
        assert float((answers[0][2][name] - each).abs().max()) < 1e-6, name
