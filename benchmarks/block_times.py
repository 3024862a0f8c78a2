"""What benchmarks of stages and replicas share: networks, batches, and times of layers in one process.

A layer timed as a stage of its own takes longer than in a row with others: each stage calls autograd, looks weights up
and hands tensors on. What all of them take more than the model as one stage is taken off each of them evenly.

    layer by layer  |f|+|ff|+|f|+|fff|+      + what a stage costs
    in a row        |f|ff|f|fff|+
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.measure.graphs import export_training
from outsize.models import build_model
from outsize.plan.partition import Chain, ChainLayer, Stream
from outsize.plan.plan import Pipeline, PlannedStage
from outsize.ranks import ALONE, World
from outsize.strategies.pipeline import cut_traced, layers_of, piped, share_among
from outsize.strategies.step import LossParts

_AT_ONCE = 2  # micro-batches of a step that is timed
NETWORKS = ("unet", "erfnet", "resnet")
_CLASSES = 6
Layer = tuple[str, int]
Times = dict[tuple[str, int], float]  # what is done, in which stage


Seen = tuple[tuple[str, int, int], float, float]


@dataclass(frozen=True)
class Watch:
    """Hands on what a rank of a pipeline did when."""

    done: Callable[[Sequence[Seen]], None]
    now: Callable[[], float] = time.perf_counter


def _sums(_: nn.Module, answer: Tensor, batch: Batch) -> dict[str, Tensor]:
    labels = batch.targets.labels.long()  # type: ignore[attr-defined]
    return {"entropy": functional.cross_entropy(answer, labels, reduction="sum")}


PARTS = LossParts(lambda _, batch: (batch.images,), _sums)


def network(asked: argparse.Namespace) -> nn.Module:
    """Build the network that is asked for, always with the same weights."""
    torch.manual_seed(0)
    if asked.model == "resnet":
        trunk = list(torchvision.models.resnet18().children())[:-2]
        head = nn.Conv2d(512, _CLASSES, 1)
        trunk[0] = nn.Conv2d(4, 64, 7, stride=2, padding=3, bias=False)
        return nn.Sequential(*trunk, head, nn.Upsample(scale_factor=32.0)).train()
    options = {"levels": asked.levels, "width": asked.width} if asked.model == "unet" else {}
    return build_model(asked.model, num_classes=_CLASSES, in_channels=4, **options).train()


def made_up(num: int, px: int, of_all: int | None = None) -> Batch:
    """Return pictures that are made up; a replica's are some of all."""
    labels = torch.randint(0, _CLASSES, (num, px, px), dtype=torch.uint8)
    totals = {"entropy": float((of_all or num) * px * px)}
    return Batch(torch.randn(num, 4, px, px), labels < _CLASSES, ClassRasters(labels), totals)


def measured_chain(asked: argparse.Namespace) -> tuple[Chain, list[Layer]]:
    """Time every layer on one sample, as it runs in a row; what goes between them is read from the trace.

    Seconds are those of this process's thread, so that others on the machine do not count.
    """
    model, batch = network(asked), made_up(_AT_ONCE, asked.px)
    inputs = (batch.images[:1],)
    traced = export_training(model, inputs)
    layers = layers_of(traced)
    begins, num = [("", 0), *layers[1:]], len(layers)
    alone = {split: _timed(asked, model, batch, begins, split=split) for split in (False, True)}
    row = {split: _timed(asked, model, batch, begins[:1], split=split) for split in (False, True)}
    forward = _in_a_row([alone[False]["forward", each] for each in range(num)], row[False]["forward", 0])
    backward = _in_a_row([alone[False]["backward", each] for each in range(num)], row[False]["backward", 0])
    first = row[True]["backward", 0]  # of a backward that is split
    whole, later = row[False]["backward", 0], row[True]["weights", 0]
    found = [alone[True]["weights", each] / later for each in range(num)]
    extra_s = max(0.0, first + later + row[True]["forward", 0] - whole - row[False]["forward", 0])
    times = zip(forward, backward, found, strict=True)
    chain_layers = tuple(
        ChainLayer(path, *ways, call=call, weights_s=max(0.0, whole - first) * share, split_s=extra_s * share)
        for (path, call), (*ways, share) in zip(layers, times, strict=True)
    )
    found_streams = cut_traced(traced, model, inputs, begins, {}, bf16=False).streams
    streams = [
        Stream(each.made, each.read, 4 * torch.Size(each.layout.shape).numel())
        for each in found_streams.values()
    ]
    return Chain(chain_layers, tuple(streams), overlaps=False), layers


def _timed(
    asked: argparse.Namespace, model: nn.Module, batch: Batch, begins: Sequence[Layer], *, split: bool
) -> Times:
    """Return the median seconds of each task of stages that begin so, all of them in this process."""
    stages = tuple(PlannedStage(0, begin) for begin in begins)
    pipeline = Pipeline(stages, _AT_ONCE, "zero-bubble" if split else "gpipe")
    seen: dict[tuple[str, int], list[float]] = {}

    def watch(done: Sequence[Seen]) -> None:
        for (doing, stage, _), began_s, ended_s in done:
            seen.setdefault((doing, stage), []).append(ended_s - began_s)

    share = replace(share_among(ALONE, pipeline, _AT_ONCE), watch=Watch(watch, time.thread_time))
    step = piped(model, PARTS, pipeline, share, bf16=False)
    for number in range(asked.tries + 1):
        step(batch, last=True)
        if not number:
            seen.clear()
    return {task: statistics.median(each) for task, each in seen.items()}


def _in_a_row(alone: Sequence[float], whole_s: float) -> list[float]:
    """Return times of layers that add up to that of all of them in a row."""
    more_s = max(0.0, sum(alone) - whole_s) / len(alone)
    left = [max(0.0, each - more_s) for each in alone]
    return [each * whole_s / sum(left) for each in left]


def link_between(world: World) -> tuple[float, float]:
    """Measure what one process hands to the other: seconds of a message, bytes per second."""
    took = []
    for num_bytes in (8, 2**22) if world.rank < 2 and not world.is_alone else ():
        tensor, times = torch.zeros(num_bytes // 4), []
        for _ in range(9):
            began_s = time.perf_counter()
            (torch.distributed.send if world.rank == 0 else torch.distributed.recv)(tensor, 1 - world.rank)
            (torch.distributed.recv if world.rank == 0 else torch.distributed.send)(tensor, 1 - world.rank)
            times.append((time.perf_counter() - began_s) / 2)
        took.append(statistics.median(times))
    took = took or [0.0, 1.0]
    return world.broadcast((took[0], 2**22 / max(1e-9, took[1] - took[0])))
