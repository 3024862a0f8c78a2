"""Steps of replicas beside steps of as many independent processes, which exchange nothing; interleaved.

    python benchmarks/replicas_speed.py --ranks 2 --rounds 10

Each rank has the samples of its share, a U-Net with batch norm, and one thread. A round is some steps alone, then
as many together, begun and ended by all at once; its ratio is the time alone over the time together. Seconds of CPU
are told apart: they hold on a machine that does other things, too, but not how long a rank waited for another.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.models import build_model
from outsize.plan.plan import Plan
from outsize.ranks import World, joined
from outsize.ranks.launch import launch
from outsize.strategies.compose import compose
from outsize.strategies.replicate import look_across, share_out

_CLASSES = 6


def _terms(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    labels = batch.targets.labels.long()  # type: ignore[attr-defined]
    return {"entropy": functional.cross_entropy(model(batch.images), labels, reduction="sum")}


def _steps(world: World, asked: argparse.Namespace, *, together: bool) -> Callable[[], tuple[float, float]]:
    """Return what runs the steps of a round on this rank, and returns the seconds that the slowest took, and of CPU."""
    torch.manual_seed(0)
    model = build_model("unet", num_classes=_CLASSES, in_channels=4, levels=4, width=asked.width).train()
    share = share_out(world, asked.samples * world.size)
    num, px = len(share.numbers), asked.px
    images = torch.randn(num, 4, px, px)
    labels = torch.randint(0, _CLASSES, (num, px, px), dtype=torch.uint8)
    totals = {"entropy": float(num * px * px * (world.size if together else 1))}
    batch = Batch(images, labels < _CLASSES, ClassRasters(labels), totals)
    plan = Plan(purpose="train", exact=True, batch=num, peak_bytes=0, limit_bytes=0, why=())
    if together:
        look_across(model, share, local_norm=asked.local_norm)
    step = compose(model, _terms, plan, bf16=False, share=share if together else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> tuple[float, float]:
        world.barrier()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(asked.steps):
            step(batch, last=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        took = world.gather((time.perf_counter() - began_s, time.process_time() - began_cpu_s))
        return max(each for each, _ in took), sum(each for _, each in took) / world.size

    return run


def _rank(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with joined() as world:
        alone, together = (_steps(world, asked, together=each) for each in (False, True))
        ratios, of_cpu = [], []
        for number in range(asked.rounds + 1):
            (one_s, one_cpu_s), (other_s, other_cpu_s) = alone(), together()
            if number == 0:  # warms up
                continue
            ratios.append(one_s / other_s)
            of_cpu.append(one_cpu_s / other_cpu_s)
            if world.is_owner:
                print(
                    f"round {number}: alone {one_s:.3f} s (CPU {one_cpu_s:.3f}), together {other_s:.3f} s (CPU"
                    f" {other_cpu_s:.3f}), ratio {ratios[-1]:.3f} (CPU {of_cpu[-1]:.3f})"
                )
        if world.is_owner:
            for name, row in (("ratio", ratios), ("ratio of CPU", of_cpu)):
                print(f"median {name} {statistics.median(row):.3f}, {min(row):.3f} to {max(row):.3f}")
            each = f"{asked.steps} steps of {asked.samples} x {asked.px} px on each rank"
            print(f"{world.size} ranks, torch {torch.__version__}, {each}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("ranks", 2),
        ("rounds", 10),
        ("steps", 4),
        ("samples", 2),
        ("px", 128),
        ("width", 16),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--local-norm", action="store_true")
    parser.add_argument("--is-rank", action="store_true")
    asked = parser.parse_args()
    if asked.is_rank:
        _rank(asked)
    else:
        sys.exit(launch([*sys.argv, "--is-rank"], asked.ranks))


if __name__ == "__main__":
    main()
