"""Networks in stages beside the same ones on one process: what a step leaves on each rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.measure.graphs import export_training, module_call
from outsize.models import build_model
from outsize.plan.plan import Pipeline, PlannedStage, unplanned
from outsize.plan.staging import tighter_stages
from outsize.ranks import World
from outsize.strategies.compose import compose
from outsize.strategies.pipeline import cutting, share_among
from outsize.strategies.replicate import Share
from outsize.strategies.step import LossParts, Step
from outsize.strategies.steps.recover import Shortage, recovering

NUM, CLASSES, BANDS = 4, 3, 3


def _unet(norm: str) -> nn.Module:
    return build_model("unet", num_classes=CLASSES, in_channels=BANDS, levels=3, width=4, norm=norm)


def _frozen() -> nn.Module:
    net = _unet("batch")
    for each in net.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.eval()
    return net


def _erfnet() -> nn.Module:
    return build_model("erfnet", num_classes=CLASSES, in_channels=BANDS)


def _smp() -> nn.Module:
    from segmentation_models_pytorch import Unet

    return Unet("resnet18", encoder_weights=None, classes=CLASSES)  # type: ignore[no-any-return]


def _vit() -> nn.Module:
    return torchvision.models.VisionTransformer(16, 4, 3, 2, 8, 16, num_classes=CLASSES, dropout=0.2)


class Odd(nn.Module):
    """A skip over all stages, a weight that two layers share, writing in place behind cuts, dropout of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(BANDS, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.relu, self.drop, self.drop2d = nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Dropout2d(0.2)
        self.head = nn.Conv2d(16, CLASSES, 1)
        self.never = nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        skip = self.first(images)
        x = self.drop(self.relu(self.second(skip)))
        x = self.drop2d(self.third(x))
        x = self.relu((x + functional.conv2d(skip, self.second.weight, padding=1)).mul_(2.0))
        return self.head(torch.cat((x, skip), 1))  # type: ignore[no-any-return]


NETS: dict[str, Callable[[], nn.Module]] = {
    "unet": lambda: _unet("group"),
    "unet-batch": lambda: _unet("batch"),
    "frozen": _frozen,
    "odd": Odd,
    "erfnet": _erfnet,
    "smp": _smp,
    "resnet": lambda: torchvision.models.resnet18(num_classes=CLASSES),
    "vit": _vit,
}
SIDES = {"smp": 64, "erfnet": 32, "resnet": 64}


def made(name: str) -> nn.Module:
    """Return a network with weights that all processes draw alike."""
    torch.manual_seed(0)
    net = NETS[name]().double()
    modes = [each.training for each in net.modules()]
    net.train()
    for each, mode in zip(net.modules(), modes, strict=True):
        each.training = mode
    return net


def batch(name: str) -> Batch:
    """Return pictures with unequal areas that are ignored."""
    chance, side = torch.Generator().manual_seed(1), SIDES.get(name, 16)
    images = torch.randn(NUM, BANDS, side, side, generator=chance, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (NUM, side, side), generator=chance, dtype=torch.uint8)
    labels[0, :9] = 255
    return Batch(images, labels != 255, ClassRasters(labels), {"entropy": float((labels != 255).sum())})


def _inputs(_: nn.Module, part: Batch) -> tuple[Any, ...]:
    return (part.images,)


def _sums(_: nn.Module, answer: Any, part: Batch) -> dict[str, Tensor]:
    assert isinstance(part.targets, ClassRasters)
    labels = part.targets.labels.long()
    labels = labels[:, -1, -1] if answer.dim() == 2 else labels  # one class for each picture
    return {"entropy": functional.cross_entropy(answer, labels, ignore_index=255, reduction="sum")}


PARTS = LossParts(_inputs, _sums)


@dataclass(frozen=True)
class Left:
    """What a step leaves on a rank."""

    loss: float
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def _left(name: str, plan: Any, share: Share | None) -> Left:
    net = made(name)
    step = compose(net, PARTS, replace(plan, exact=False), bf16=False, share=share)
    whole = batch(name)
    if share is not None:
        own = torch.tensor(share.numbers)
        assert isinstance(whole.targets, ClassRasters)
        targets = ClassRasters(whole.targets.labels[own])
        whole = replace(whole, images=whole.images[own], valid=whole.valid[own], targets=targets)
    torch.manual_seed(7)
    loss = sum(float(value) for value in step(whole, last=True).values())
    gradients = {name: each.grad for name, each in net.named_parameters() if each.grad is not None}
    return Left(loss, gradients, dict(net.named_buffers()))


@functools.cache
def _exported(name: str, num: int) -> Any:
    return export_training(made(name), (batch(name).images[:num],))


def layers(name: str) -> list[tuple[str, int]]:
    """Return the layers of a net in the order in which they run."""
    found = [module_call(each) for each in _exported(name, 1).graph.nodes if each.op == "call_function"]
    return list(dict.fromkeys(each for each in found if each[0]))


def pipeline_of(name: str, ranks: Sequence[int], num_micro: int, schedule: str, **more: Any) -> Pipeline:
    """Cut a net evenly by number of layers."""
    names, order = layers(name), more.pop("order", {})
    begins = [("", 0), *(names[len(names) * number // len(ranks)] for number in range(1, len(ranks)))]
    stages = tuple(PlannedStage(rank, begin, **more) for rank, begin in zip(ranks, begins, strict=True))
    return Pipeline(stages, num_micro, schedule, **order)


Way = tuple[
    Sequence[int], int, str, dict[str, Any]
]  # ranks of stages, micro-batches, schedule; of each stage, and the order of work


def staged(world: World, name: str, ways: Sequence[Way]) -> list[Left]:
    """Run a step of a net in stages in several ways; ranks beyond those of the stages are replicas."""
    with mock.patch.object(cutting, "export_training", _as_exported(name)):
        return [_staged(world, name, *way) for way in ways]


def _as_exported(name: str) -> Callable[..., Any]:
    """Trace a net of one shape once for all ways: that takes longer than the steps."""
    return lambda _, inputs: _exported(name, len(inputs[0]))


def _staged(
    world: World, name: str, ranks: Sequence[int], num_micro: int, schedule: str, more: dict[str, Any]
) -> Left:
    pipeline = pipeline_of(name, ranks, num_micro, schedule, **more)
    share = share_among(world, pipeline, NUM)
    return _left(name, unplanned(pipeline=pipeline), share)


@functools.cache
def alone(name: str, num_micro: int) -> Left:
    """Run the same step in one process."""
    return _left(name, unplanned(micro_batches=num_micro), None)


def apart(whole: Left, parts: Sequence[Left]) -> float:
    """Return the largest difference, relative to the largest of its kind; a rank has the gradients of its stages."""
    found = [abs(whole.loss - part.loss) / abs(whole.loss) for part in parts]
    largest = max(float(each.abs().max()) for each in whole.gradients.values())
    assert set().union(*(part.gradients for part in parts)) == whole.gradients.keys()
    for part in parts:
        assert len(parts) == 1 or part.gradients.keys() < whole.gradients.keys(), "all of it is on one rank"
        found += [
            float((own - whole.gradients[name]).abs().max()) / largest for name, own in part.gradients.items()
        ]
    for name, buffer in whole.buffers.items():  # of the rank that runs the layer
        found.append(min(float((part.buffers[name] - buffer).abs().max()) for part in parts))
    return max(found)


def short(world: World, name: str) -> tuple[Left, list[str]]:
    """Run a step whose last stage runs out of memory in its second micro-batch, and what is tried then."""
    pipeline = pipeline_of(name, (0, 1), 2, "1f1b")
    share, tried = share_among(world, pipeline, NUM), list[str]()
    net, calls = made(name), iter(range(1, 100))

    def sums(model: nn.Module, answer: Any, part: Batch) -> dict[str, Tensor]:
        if next(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ...")
        return _sums(model, answer, part)

    def step_of(now: Pipeline) -> Step:
        plan = replace(unplanned(pipeline=now), exact=False)
        return compose(net, LossParts(_inputs, sums), plan, bf16=False, share=share)

    def tighten(_: Shortage) -> Step:
        tighter = tighter_stages(pipeline, NUM, more_parts=True)
        assert tighter is not None
        tried.append("every stage again" if all(each.recomputes for each in tighter.stages) else "less")
        return step_of(tighter)

    step = recovering(step_of(pipeline), net, tighten, world=world)
    torch.manual_seed(7)
    loss = sum(float(value) for value in step(batch(name), last=True).values())
    gradients = {name: each.grad for name, each in net.named_parameters() if each.grad is not None}
    return Left(loss, gradients, dict(net.named_buffers())), tried
