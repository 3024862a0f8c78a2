"""Steps of a U-Net in stages over processes beside plain ones in micro-batches; interleaved, and as predicted.

    python benchmarks/pipeline_speed.py --stages 2 --rounds 10 --out pipeline.svg
    python benchmarks/pipeline_speed.py --stages 4 --model erfnet

Every layer of the model is first timed as a stage of its own in one process. From these times the partition is made,
and its bound on the speed-up; the played schedule says how long a step should take. Each process has one thread. A
round is some plain steps, as many through the chain and as many through the fold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.measure.graphs import export_training
from outsize.models import build_model
from outsize.plan.partition import Chain, ChainLayer, Partition, Stream, Terms, cut_chain, fold_chain
from outsize.plan.plan import Pipeline, PlannedStage, unplanned
from outsize.plan.simulate import play_planned
from outsize.plan.staging.choice import planned
from outsize.ranks import ALONE, World, joined
from outsize.ranks.launch import launch
from outsize.report.schedule import Slice, draw_schedule
from outsize.strategies.compose import compose
from outsize.strategies.pipeline import cut_traced, layers_of, piped, share_among
from outsize.strategies.step import LossParts

_CLASSES = 6
_ORDER = ("forward", "backward")


def _sums(_: nn.Module, answer: Tensor, batch: Batch) -> dict[str, Tensor]:
    labels = batch.targets.labels.long()  # type: ignore[attr-defined]
    return {"entropy": functional.cross_entropy(answer, labels, reduction="sum")}


_PARTS = LossParts(lambda _, batch: (batch.images,), _sums)


def _model(asked: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    if asked.model == "resnet":
        trunk = list(torchvision.models.resnet18().children())[:-2]
        head = nn.Conv2d(512, _CLASSES, 1)
        trunk[0] = nn.Conv2d(4, 64, 7, stride=2, padding=3, bias=False)
        return nn.Sequential(*trunk, head, nn.Upsample(scale_factor=32.0)).train()
    options = {"levels": asked.levels, "width": asked.width} if asked.model == "unet" else {}
    return build_model(asked.model, num_classes=_CLASSES, in_channels=4, **options).train()


def _batch(asked: argparse.Namespace) -> Batch:
    num, px = asked.micro, asked.px
    labels = torch.randint(0, _CLASSES, (num, px, px), dtype=torch.uint8)
    targets = ClassRasters(labels)
    return Batch(torch.randn(num, 4, px, px), labels < _CLASSES, targets, {"entropy": float(labels.numel())})


def measured_chain(asked: argparse.Namespace) -> tuple[Chain, list[tuple[str, int]]]:
    """Time every layer as a stage of its own; what goes between them is read from the trace."""
    model, batch = _model(asked), _batch(asked)
    inputs = (batch.images[:1],)
    traced = export_training(model, inputs)
    layers = layers_of(traced)
    begins = [("", 0), *layers[1:]]
    pipeline = Pipeline(tuple(PlannedStage(0, begin) for begin in begins), asked.micro, "gpipe")
    seen: dict[tuple[str, int], list[float]] = {}

    def watch(done: list[tuple[tuple[str, int, int], float, float]]) -> None:
        for (doing, stage, _), began_s, ended_s in done:
            seen.setdefault((doing, stage), []).append(ended_s - began_s)

    share = share_among(ALONE, pipeline, asked.micro)
    step = piped(model, _PARTS, pipeline, share, bf16=False, watch=watch)
    for number in range(asked.tries + 1):
        step(batch, last=True)
        if not number:
            seen.clear()
    found = cut_traced(traced, model, inputs, begins, {}, bf16=False)
    times = [[statistics.median(seen[doing, stage]) for doing in _ORDER] for stage in range(len(layers))]
    chain_layers = [
        ChainLayer(path, *pair, call=call) for (path, call), pair in zip(layers, times, strict=True)
    ]
    streams = [
        Stream(each.made, each.read, 4 * torch.Size(each.layout.shape).numel())
        for each in found.streams.values()
    ]
    return Chain(tuple(chain_layers), tuple(streams), overlaps=False), layers


def _link(world: World) -> tuple[float, float]:
    """Measure what one process hands to the other: seconds of a message, bytes per second."""
    took = []
    for num_bytes in (8, 2**22) if world.rank < 2 else ():
        tensor, times = torch.zeros(num_bytes // 4), []
        for _ in range(9):
            began_s = time.perf_counter()
            (torch.distributed.send if world.rank == 0 else torch.distributed.recv)(tensor, 1 - world.rank)
            (torch.distributed.recv if world.rank == 0 else torch.distributed.send)(tensor, 1 - world.rank)
            times.append((time.perf_counter() - began_s) / 2)
        took.append(statistics.median(times))
    took = took or [0.0, 1.0]
    return world.broadcast((took[0], 2**22 / max(1e-9, took[1] - took[0])))


def _rank(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with joined() as world:
        latency_s, bytes_per_s = (0.0, 1.0) if world.is_alone else _link(world)
        chain, layers = world.owners(lambda: measured_chain(asked))
        terms = Terms(world.size, asked.micro, float("inf"), bytes_per_s, latency_s, copies_overlap=False)
        ways: dict[str, tuple[Partition, Pipeline]] = {}
        for name, cut in (("chain", cut_chain), ("fold", fold_chain))[: world.size]:
            partition = cut(chain, terms)
            pipeline = planned(chain, partition, set(layers))
            assert pipeline is not None
            ways[name] = partition, pipeline
        _compare(asked, world, ways)


def _compare(asked: argparse.Namespace, world: World, ways: dict[str, tuple[Partition, Pipeline]]) -> None:
    batch, last_seen = _batch(asked), {}
    runs: dict[str, Callable[[], object]] = {}
    loose = replace(unplanned(micro_batches=asked.micro), exact=False)
    plain = compose(_model(asked), _PARTS, loose, bf16=False)
    runs["plain"] = lambda: plain(batch, last=True) if world.is_owner else None
    for name, (_, pipeline) in ways.items():
        share = share_among(world, pipeline, asked.micro)
        watch = _remembering(last_seen, name)
        step = piped(_model(asked), _PARTS, pipeline, share, bf16=False, watch=watch)
        runs[name] = lambda step=step: step(batch, last=True)  # type: ignore[misc]
    took: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(asked.rounds + 1):
        for name, run in runs.items():
            world.barrier()
            began_s = time.perf_counter()
            for _ in range(asked.steps):
                run()
            seconds = max(world.gather(time.perf_counter() - began_s)) / asked.steps
            if number:  # the first warms up
                took[name].append(seconds)
    everything = world.gather(last_seen)
    if world.is_owner:
        _say(asked, ways, took)
        _draw(asked, ways, everything)


def _remembering(into: dict[str, list], name: str) -> Callable[[list], None]:
    return lambda seen: into.__setitem__(name, seen)


def _say(
    asked: argparse.Namespace, ways: dict[str, tuple[Partition, Pipeline]], took: dict[str, list[float]]
) -> None:
    plain = took["plain"]
    print(f"plain: {statistics.median(plain):.4f} s for a step of {asked.micro} micro-batches")
    for name, (partition, pipeline) in ways.items():
        ratios = [one / other for one, other in zip(plain, took[name], strict=True)]
        speedup, bound = statistics.median(ratios), partition.speedup_bound
        played_s = play_planned(pipeline, asked.micro).step_s
        measured_s = statistics.median(took[name])
        print(
            f"{name}: {speedup:.3f} times as fast ({min(ratios):.3f} to {max(ratios):.3f}), bound {bound:.3f}, "
            f"{speedup / bound:.2f} of it; step {measured_s:.4f} s, predicted {played_s:.4f} s "
            f"({played_s / measured_s - 1:+.1%})"
        )
    print(
        f"torch {torch.__version__}, {asked.rounds} rounds of {asked.steps} steps, one thread each",
        flush=True,
    )


def _draw(asked: argparse.Namespace, ways: dict[str, tuple[Partition, Pipeline]], seen: list[dict]) -> None:
    if asked.out is None:
        return
    for name, (_, pipeline) in ways.items():
        played = play_planned(pipeline, asked.micro)
        predicted = [Slice(b.rank, b.doing, b.micro, b.start_s, b.end_s) for b in played.beats]
        first_s = min(each[name][0][1] for each in seen)
        measured = [
            Slice(rank, doing, micro, began_s - first_s, ended_s - first_s)
            for rank, each in enumerate(seen)
            for (doing, _, micro), began_s, ended_s in each[name]
        ]
        for what, slices in (("predicted", predicted), ("measured", measured)):
            path = asked.out.with_stem(f"{asked.out.stem}-{name}-{what}")
            path.write_text(str(draw_schedule(slices, f"{name}, {what}")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("stages", 2),
        ("rounds", 10),
        ("steps", 2),
        ("micro", 8),
        ("px", 128),
        ("width", 16),
        ("levels", 4),
        ("tries", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--model", choices=("unet", "erfnet", "resnet"), default="unet")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--is-rank", action="store_true")
    asked = parser.parse_args()
    if asked.is_rank:
        _rank(asked)
    else:
        sys.exit(launch([*sys.argv, "--is-rank"], asked.stages))


if __name__ == "__main__":
    main()
