"""One rank against several: weak and strong scaling, and where the time of a step goes that is lost.

each round    alone    rank 0 computes, the others wait        --> what a step costs where nobody is beside it
              apart    all compute, nobody says a word         --> + slower side by side, + the slowest of them
              summed   gradients are summed                    --> + communication that backward does not hide
              whole    batch norm over all ranks, too          --> + its exchanges: the step of a training
              input    all prepare the samples of a step       --> waited for where it takes longer than the step
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from outsize.data.sample import Samples
from outsize.errors import JobError, RanksError, explain
from outsize.job import TrainSection
from outsize.measurement import Figure
from outsize.plan.plan import unplanned
from outsize.ranks import ALONE, World, joined, own_device
from outsize.strategies.replicate import Share, look_across
from outsize.tasks import task_of
from outsize.train.made_up import make_up_step

TURN_S = 0.4  # that a turn lasts at least
LEAST_ROUNDS = 3
_MOST_STEPS = 50  # of a turn
_WAYS = ("alone", "apart", "summed", "whole", "input")
Seconds = dict[str, list[list[float]]]  # by way: rounds of ranks


@dataclass(frozen=True)
class ToScale:
    """The training step whose scaling is measured; goes to every rank."""

    task: str
    model: nn.Module
    section: TrainSection
    num_bands: int
    num_classes: int
    samples: Samples
    device_name: str
    bf16: bool
    rounds: int
    max_s: float  # of one regime on one number of ranks


def refuse_sizes(sizes: Sequence[int], asked: str, batch: int, kind: str) -> None:
    """Refuse ranks that have no sample or no GPU for each."""
    if not sizes:
        need = "numbers of ranks, one of them above 1: one rank is measured beside each"
        raise JobError(explain("nothing to compare", f"--gpus {asked}", need, "write e.g. --gpus 1,2"))
    if max(sizes) > batch:
        need, remedy = "a sample for each rank", "take fewer ranks, or --set train.batch=... with more"
        raise JobError(
            explain("more ranks than samples", f"{max(sizes)} ranks for train.batch = {batch}", need, remedy)
        )
    if kind == "cuda" and max(sizes) > torch.cuda.device_count():
        found, need = f"{torch.cuda.device_count()} GPUs", f"{max(sizes)}, one for each rank"
        raise JobError(explain("more ranks than GPUs", found, need, "take fewer, or add --device cpu"))


def measure_scaling(
    given: ToScale, num_ranks: Sequence[int], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a row for each number of ranks and each regime: weak has the job's batch on each rank, strong in all."""
    rows = []
    for size in num_ranks:
        for regime, seconds in _on_ranks(given, size).items():
            row = as_row(regime, size, given.section.batch, seconds)
            rows.append(row)
            say(f"{regime}, {size} ranks: efficiency {row['efficiency']['median']:.0%}")
    return rows


def as_row(
    regime: str, size: int, batch: int, seconds: Mapping[str, Sequence[Sequence[float]]]
) -> dict[str, Any]:
    """Sum the rounds up; what is lost adds up, in each of them, to the step less what it would be at best."""
    all_samples = batch * size if regime == "weak" else batch
    rounds = [
        _lost(dict(zip(_WAYS, each, strict=True)), 1 if regime == "weak" else size)
        for each in zip(*(seconds[way] for way in _WAYS), strict=True)
    ]
    figures = {name: Figure.of([each[name] for each in rounds]).as_dict() for name in rounds[0]}
    rate = Figure.of([all_samples / each["step_s"] for each in rounds]).as_dict()
    return {"regime": regime, "num_ranks": size, "batch": all_samples, "samples_per_s": rate, **figures}


def _lost(took: Mapping[str, Sequence[float]], split: int) -> dict[str, float]:
    """Take one round apart; a step of one rank on `split` times as much is the measure."""
    best_s = took["alone"][0] / split
    apart, whole_s, summed_s = took["apart"], max(took["whole"]), max(took["summed"])
    return {
        "step_s": whole_s,
        "alone_s": took["alone"][0],
        "efficiency": best_s / whole_s,
        "lost_beside_s": statistics.fmean(apart) - best_s,
        "lost_straggling_s": max(apart) - statistics.fmean(apart),
        "lost_communication_s": summed_s - max(apart),
        "lost_norm_s": whole_s - summed_s,
        "input_s": max(took["input"]),
        "lost_input_s": max(0.0, max(took["input"]) - whole_s),
    }


def _on_ranks(given: ToScale, size: int) -> dict[str, Seconds]:
    """Measure on so many new processes of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    threads = max(1, len(os.sched_getaffinity(0)) // size)
    started = []
    for rank in range(size):
        numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
        environ = {**numbers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads}
        named = {name: str(value) for name, value in environ.items()}
        started.append(context.Process(target=_as_rank, args=(named, given, theirs), daemon=True))
        started[-1].start()
    theirs.close()
    try:
        found: dict[str, Seconds] = ours.recv()
    except EOFError:
        need, remedy = "all ranks to the end", "look at the lines above, or measure fewer ranks"
        raise RanksError(explain(f"one of {size} ranks ended", "no figures", need, remedy)) from None
    finally:
        for process in started:
            process.join()
    return found


def _as_rank(environ: Mapping[str, str], given: ToScale, pipe: Connection) -> None:
    os.environ.update(environ)
    torch.set_num_threads(int(environ["OMP_NUM_THREADS"]))
    with joined(environ=environ) as world:
        batch = given.section.batch
        part = world.part_of(batch)
        shares = {"weak": batch, "strong": part.stop - part.start}
        found = {regime: rounds_of(world, given, share) for regime, share in shares.items()}
        if world.is_owner:
            pipe.send(found)
    pipe.close()


def rounds_of(world: World, given: ToScale, share: int) -> Seconds:
    """Take turns until the rounds or the time are over; on each rank a share of the samples of a step."""
    end_s = time.monotonic() + given.max_s
    sizes = world.gather(share)
    runs: dict[str, Callable[[], object]] = {
        "alone": _step(given, [given.section.batch], ALONE, world),
        "apart": _step(given, [share], ALONE, world),
        "summed": _step(given, sizes, world, world, local_norm=True),
        "whole": _step(given, sizes, world, world),
        "input": lambda: [given.samples.sample(0, world.rank * share + index) for index in range(share)],
    }
    for name, run in runs.items():
        if name != "alone" or world.is_owner:
            run()
    found: Seconds = {name: [] for name in runs}
    for number in range(given.rounds):
        if world.broadcast(number >= LEAST_ROUNDS and time.monotonic() > end_s):
            break
        for name, run in runs.items():
            world.at(f"{name}, round {number + 1}")
            found[name].append(_turn(world, run, idle=name == "alone" and not world.is_owner))
    return found


def _turn(world: World, run: Callable[[], object], *, idle: bool) -> list[float]:
    """Return how long a step took on each rank; those that are idle wait."""
    world.barrier()
    once_s = 0.0 if idle else _seconds(run, 1)
    num = world.broadcast(max(1, min(_MOST_STEPS, int(TURN_S / max(once_s, 1e-6)))))
    world.barrier()
    took_s = 0.0 if idle else _seconds(run, num) / num
    return world.gather(took_s)


def _seconds(run: Callable[[], object], num: int) -> float:
    began_s = time.perf_counter()
    for _ in range(num):
        run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began_s


def _step(
    given: ToScale, sizes: Sequence[int], with_ranks: World, world: World, *, local_norm: bool = False
) -> Callable[[], object]:
    """Return a step on made-up pixels, by itself or with all ranks; `sizes` are their numbers of samples."""
    device = torch.device(own_device(world, given.device_name) if given.device_name != "cpu" else "cpu")
    shape = (sizes[with_ranks.rank], given.num_bands, *given.section.window_px)
    made = make_up_step(
        given.model, task_of(given.task), given.section, shape, given.num_classes, device, bf16=given.bf16
    )
    if with_ranks.is_alone:
        return made.runs(made.composed(unplanned()))
    begin = sum(sizes[: world.rank])
    share = Share(world, sum(sizes), [[size] for size in sizes], [*range(begin, begin + shape[0])])
    look_across(made.model, share, local_norm=local_norm)
    totals = {
        name: world.add_up(torch.as_tensor(total, dtype=torch.float64).clone())
        for name, total in made.batch.totals.items()
    }
    whole = {name: total.to(device) if total.dim() else float(total) for name, total in totals.items()}
    made = replace(made, batch=replace(made.batch, totals=whole))
    return made.runs(made.composed(unplanned(), share=share))
