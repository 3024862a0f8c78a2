"""The simulator beside runs of our own: replicas and stages of 1, 2 and 4 processes over gloo, three networks.

    python benchmarks/simulator_own_runs.py --rounds 5

Layers are timed in one process, and a link by messages of two. From these alone a step is predicted:

    1 process   layers, for each micro-batch
    replicas    layers of a rank's share, then the sum of gradients in a ring
    stages      the best cut and order of work, chain or fold, played out

Processes that are more than cores take turns: no step then takes less than all work, divided among the cores. A round
is one step of each way; medians of rounds are compared. Each process has one thread; figures need idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from block_times import NETWORKS, PARTS, link_between, made_up, measured_chain, network

from outsize.plan.links import Network, measured_link
from outsize.plan.partition import Chain, ChainLayer, Stream, Terms, cut_chain, fold_chain
from outsize.plan.plan import Pipeline, unplanned
from outsize.plan.simulate import best_orders, stages_of
from outsize.plan.simulate.exchange import sum_gradients_s
from outsize.plan.staging.choice import planned
from outsize.ranks import World, joined
from outsize.ranks.launch import launch
from outsize.strategies.compose import compose
from outsize.strategies.pipeline import piped, share_among
from outsize.strategies.replicate import share_out

_WAYS = {1: ("alone",), 2: ("replicas", "stages"), 4: ("replicas", "stages")}


def _turns_s(step_s: float, work_s: float, num: int) -> float:
    """Return the time of a step of processes that share cores: all their work is to be done by these."""
    return max(step_s, work_s / min(num, os.cpu_count() or 1))


def _replicas_s(asked: argparse.Namespace, chain: Chain, num: int, link: tuple[float, float]) -> float:
    whole_s = asked.micro * (chain.forward_s(0, len(chain)) + chain.backward_s(0, len(chain)))
    between = measured_link(*link)
    num_bytes = 4 * sum(each.numel() for each in network(asked).parameters())
    summed_s = sum_gradients_s(num_bytes, num, Network(between, between, num))
    return _turns_s(whole_s / num, whole_s, num) + summed_s


def _staged(
    asked: argparse.Namespace,
    chain: Chain,
    layers: list[tuple[str, int]],
    num: int,
    link: tuple[float, float],
) -> tuple[Pipeline, float]:
    """Return the best cut and order, and how long a step of it should take."""
    terms = Terms(num, asked.micro, float("inf"), link[1], link[0], copies_overlap=False)
    found = []
    for cut in (cut_chain, fold_chain):
        partition = cut(chain, terms)
        pipeline = planned(chain, partition, set(layers))
        assert pipeline is not None
        best = best_orders(stages_of(chain, partition), asked.micro)[0]
        busy_s = sum(map(best.played.busy_s, range(num)))
        found.append((_turns_s(best.played.step_s, busy_s, num), best.carried_out(pipeline)))
    step_s, pipeline = min(found, key=lambda each: each[0])
    return pipeline, step_s


def _rank(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    chain, layers = _read((asked.folder / f"{asked.model}.json").read_text())
    with joined() as world:
        link = link_between(world)
        runs: dict[str, tuple[float, Callable[[], object]]] = {}
        for way in _WAYS[world.size]:
            if way == "stages":
                pipeline, step_s = _staged(asked, chain, layers, world.size, link)
                share = share_among(world, pipeline, asked.micro)
                step = piped(network(asked), PARTS, pipeline, share, bf16=False)
                batch = made_up(asked.micro, asked.px)
            else:
                step_s = _replicas_s(asked, chain, world.size, link)
                dealt = share_out(world, asked.micro, asked.micro // world.size)
                loose = replace(unplanned(micro_batches=asked.micro // world.size), exact=False)
                own = None if world.is_alone else dealt
                step = compose(network(asked), PARTS, loose, bf16=False, share=own)
                batch = made_up(len(dealt.numbers), asked.px, asked.micro)
            runs[way] = step_s, lambda step=step, batch=batch: step(batch, last=True)
        _measure(asked, world, runs)


def _read(text: str) -> tuple[Chain, list[tuple[str, int]]]:
    tree = json.loads(text)
    layers = tuple(ChainLayer(**each) for each in tree["chain"]["layers"])
    streams = tuple(Stream(**{**each, "read": tuple(each["read"])}) for each in tree["chain"]["streams"])
    return Chain(layers, streams, tree["chain"]["overlaps"]), [(path, call) for path, call in tree["layers"]]


def _measure(
    asked: argparse.Namespace, world: World, runs: dict[str, tuple[float, Callable[[], object]]]
) -> None:
    took: dict[str, list[float]] = {way: [] for way in runs}
    for number in range(asked.rounds + 1):
        for way, (_, run) in runs.items():
            world.barrier()
            began_s = time.perf_counter()
            run()
            seconds = max(world.gather(time.perf_counter() - began_s))
            if number:  # the first warms up
                took[way].append(seconds)
    if world.is_owner:
        found = [
            [asked.model, world.size, way, runs[way][0], statistics.median(each)]
            for way, each in took.items()
        ]
        (asked.folder / f"{asked.model}-{world.size}.json").write_text(json.dumps(found))


def _table(asked: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    errors, status = [], 0
    print("| network | processes | way | predicted | measured | error |\n|---|---|---|---|---|---|")
    for name in asked.networks:
        asked.model = name
        chain, layers = measured_chain(asked)
        (asked.folder / f"{name}.json").write_text(json.dumps({"chain": asdict(chain), "layers": layers}))
        for num in _WAYS:
            own = [*sys.argv, "--is-rank", "--model", name, "--folder", str(asked.folder)]
            status |= launch(own, num)
            for model, size, way, said_s, seen_s in json.loads(
                (asked.folder / f"{name}-{num}.json").read_text()
            ):
                errors.append(said_s / seen_s - 1)
                figures = f"{1e3 * said_s:.0f} ms | {1e3 * seen_s:.0f} ms | {errors[-1]:+.1%}"
                print(f"| {model} | {size} | {way} | {figures} |", flush=True)
    print(
        f"\nlargest error {max(map(abs, errors)):.1%} (15 % allowed); {os.cpu_count()} cores, one thread each,"
    )
    print(f"torch {torch.__version__}, {asked.micro} micro-batches of {asked.px} px, {asked.rounds} rounds")
    return status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"rounds": 5, "micro": 8, "px": 128, "width": 16, "levels": 4, "tries": 5}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--model", choices=NETWORKS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--is-rank", action="store_true")
    asked = parser.parse_args()
    if asked.is_rank:
        _rank(asked)
        return
    with tempfile.TemporaryDirectory() as folder:
        asked.folder = Path(folder)
        sys.exit(_table(asked))


if __name__ == "__main__":
    main()
