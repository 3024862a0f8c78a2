"""Steps of a U-Net in stages over processes beside plain ones in micro-batches; interleaved, and as predicted.

    python benchmarks/pipeline_speed.py --stages 2 --rounds 10 --out pipeline.svg
    python benchmarks/pipeline_speed.py --stages 4 --model erfnet

Every layer of the model is first timed in one process. From these times the partition is made, its bound on the
speed-up, and the best order of work; the played schedule says how long a step should take. Each process has one
thread. A round is some plain steps, as many through the chain and as many through the fold.
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
from block_times import NETWORKS, PARTS, Watch, link_between, made_up, measured_chain, network

from outsize.plan.partition import Partition, Terms, cut_chain, fold_chain
from outsize.plan.plan import Pipeline, unplanned
from outsize.plan.simulate import best_orders, play_planned, stages_of
from outsize.plan.staging.choice import planned
from outsize.ranks import World, joined
from outsize.ranks.launch import launch
from outsize.report.schedule import Slice, draw_schedule
from outsize.strategies.compose import compose
from outsize.strategies.pipeline import piped, share_among


def _rank(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with joined() as world:
        latency_s, bytes_per_s = link_between(world)
        chain, layers = world.owners(lambda: measured_chain(asked))
        terms = Terms(world.size, asked.micro, float("inf"), bytes_per_s, latency_s, copies_overlap=False)
        ways: dict[str, tuple[Partition, Pipeline]] = {}
        for name, cut in (("chain", cut_chain), ("fold", fold_chain))[: world.size]:
            partition = cut(chain, terms)
            pipeline = planned(chain, partition, set(layers))
            assert pipeline is not None
            ordered = best_orders(stages_of(chain, partition), asked.micro)
            best = next(each for each in ordered if asked.schedule in (None, each.schedule))
            ways[name] = partition, best.carried_out(pipeline)
        _compare(asked, world, ways)


def _compare(asked: argparse.Namespace, world: World, ways: dict[str, tuple[Partition, Pipeline]]) -> None:
    batch, last_seen = made_up(asked.micro, asked.px), {}
    runs: dict[str, Callable[[], object]] = {}
    loose = replace(unplanned(micro_batches=asked.micro), exact=False)
    plain = compose(network(asked), PARTS, loose, bf16=False)
    runs["plain"] = lambda: plain(batch, last=True) if world.is_owner else None
    for name, (_, pipeline) in ways.items():
        watch = Watch(_remembering(last_seen, name))
        share = replace(share_among(world, pipeline, asked.micro), watch=watch)
        step = piped(network(asked), PARTS, pipeline, share, bf16=False)
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
            f"{name}, {pipeline.schedule}: {speedup:.3f} times as fast ({min(ratios):.3f} to {max(ratios):.3f}), "
            f"bound {bound:.3f}, {speedup / bound:.2f} of it; step {measured_s:.4f} s, predicted {played_s:.4f} s "
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
        ("tries", 9),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--model", choices=NETWORKS, default="unet")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "zero-bubble"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--is-rank", action="store_true")
    asked = parser.parse_args()
    if asked.is_rank:
        _rank(asked)
    else:
        sys.exit(launch([*sys.argv, "--is-rank"], asked.stages))


if __name__ == "__main__":
    main()
