"""Several processes on one device, each within its share of memory, and one of them alone: what sharing costs.

each round   whole      one process has all of the device        #
             alone      one process within its share             #          the others wait
             together   all at once, each within its share       # #

On a GPU torch's allocator holds each process within its share; on a CPU nothing does: a share is planned for, and has
its part of the cores.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from outsize.bench.apart import GivenStep, Talk, process
from outsize.bench.gauge import Run, capped, weigh_on_cpu
from outsize.bench.measured_step import batch_bytes, resident_bytes
from outsize.measure.usage import watching
from outsize.measurement import Figure
from outsize.plan.plan import Plan
from outsize.progress import Reporter

WAYS = ("whole", "alone", "together")
LEAST_ROUNDS = 3
TURN_S = 0.8  # that a turn lasts, whatever a step takes
_CHUNK_S = 0.05  # of steps before one looks at the clock
_SAMPLED_S = 0.1


@dataclass(frozen=True)
class Portion:
    """What a process may have of the device, and its plan for that."""

    plan: Plan
    limit_bytes: int
    num_threads: int  # on a CPU


@dataclass(frozen=True)
class ToShare:
    """A step with the rooms that it runs in."""

    step: GivenStep
    num: int  # processes that share
    whole: Portion
    share: Portion


@dataclass(frozen=True)
class Shared:
    """What the turns showed: seconds of a step, by way, round and process; peaks and usage by way."""

    seconds: Mapping[str, Sequence[Sequence[float]]]
    peaks: Mapping[str, int]
    usage: Mapping[str, Sequence[Mapping[str, Any]]]


def num_threads_of(num: int) -> int:
    """Return the cores that each of so many processes has."""
    return max(1, torch.get_num_threads() // num)


def measure_sharing(given: ToShare, *, rounds: int, max_s: float, reporter: Reporter) -> Shared:
    """Take turns until rounds or time are over, in processes that stay."""
    end_s = time.monotonic() + max_s
    seconds: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    usage: dict[str, list[Mapping[str, Any]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        pipes = [stack.enter_context(process(_serve, given, number == 0)) for number in range(given.num)]
        found = [pipe.recv() for pipe in pipes]
        peaks = {
            "whole": found[0]["whole"],
            "alone": found[0]["share"],
            "together": max(each["share"] for each in found),
        }
        bar = stack.enter_context(reporter.bar("rounds", rounds * len(WAYS), "turns"))
        for number in range(rounds):
            if number >= LEAST_ROUNDS and time.monotonic() > end_s:
                break
            for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                taking = pipes if way == "together" else pipes[:1]
                took, used = _turn(taking, way, given.step.device)
                seconds[way].append(took)
                usage[way].append(used)
                bar.advance(1, way=way, ms=round(1e3 * statistics.fmean(took), 2))
    return Shared(seconds, peaks, usage)


def _turn(pipes: Sequence[Talk], way: str, device: torch.device) -> tuple[list[float], Mapping[str, Any]]:
    """Have some of the processes run at once, and return what a step of each took."""
    for pipe in pipes:
        pipe.send(way)
    for pipe in pipes:
        pipe.recv()  # warm, each of them
    with watching(device, every_s=_SAMPLED_S) as used:
        for pipe in pipes:
            pipe.send("go")
        took = [pipe.recv() for pipe in pipes]
        return took, used.summary(0)


def _serve(pipe: Connection, given: ToShare, is_first: bool) -> None:
    """Make the steps, weigh them, and run what is asked for until nobody asks any more."""
    made = given.step.make()
    rooms = {"whole": given.whole, "share": given.share} if is_first else {"share": given.share}
    runs = {name: made.runs(made.composed(room.plan)) for name, room in rooms.items()}
    stays = resident_bytes(made) + batch_bytes(made)
    pipe.send({name: _peak_bytes(runs[name], room, made.device, stays) for name, room in rooms.items()})
    while True:
        try:
            way = pipe.recv()
        except EOFError:
            return
        name = "whole" if way == "whole" else "share"
        with _within(rooms[name], made.device):
            pipe.send(_seconds(runs[name], made.device, 0.0))
            pipe.recv()
            pipe.send(_seconds(runs[name], made.device, TURN_S))


def _within(room: Portion, device: torch.device) -> Any:
    if device.type == "cuda":
        return capped(device, room.limit_bytes)
    torch.set_num_threads(room.num_threads)
    return nullcontext()


def _peak_bytes(run: Run, room: Portion, device: torch.device, stays: int) -> int:
    with _within(room, device):
        if device.type == "cpu":
            return weigh_on_cpu(run, stays)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)


def _seconds(run: Run, device: torch.device, for_s: float) -> float:
    """Return what a step takes, of as many as there are in a time; one at least."""
    began_s = time.perf_counter()
    num, at_once, took_s = 0, 1, 0.0
    while num == 0 or took_s < for_s:
        for _ in range(at_once):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        num += at_once
        took_s = time.perf_counter() - began_s
        at_once = max(1, math.floor(_CHUNK_S * num / took_s))
    return took_s / num


def as_rows(found: Shared, given: ToShare) -> list[dict[str, Any]]:
    """Return a row for each way: a step of a process, samples a second of all, both against the whole device."""
    batch, whole = given.step.section.batch, [statistics.fmean(each) for each in found.seconds["whole"]]
    rows = []
    for way in WAYS:
        rounds, room = found.seconds[way], given.whole if way == "whole" else given.share
        steps = [statistics.fmean(each) for each in rounds]
        rates = [sum(batch / each for each in took) for took in rounds]
        figures = {
            "step_s": steps,
            "samples_per_s": rates,
            "over_whole": [step / one for step, one in zip(steps, whole, strict=True)],
            "throughput": [rate * one / batch for rate, one in zip(rates, whole, strict=True)],
        }
        used = found.usage[way]
        rows.append(
            {
                "way": way,
                "processes": given.num if way == "together" else 1,
                "limit_bytes": room.limit_bytes,
                "num_threads": room.num_threads if given.step.device.type == "cpu" else None,
                "why": list(room.plan.why),
                "peak_bytes": found.peaks[way],
                "predicted_step_s": room.plan.step_s,
                **{name: Figure.of(values).as_dict() for name, values in figures.items()},
                **{
                    name: max((each[name] for each in used if each[name]), default=None)
                    for name in ("gpu_bytes",)
                },
                "gpu_use": _mean([each["gpu_use"] for each in used]),
            }
        )
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return round(statistics.fmean(known), 4) if known else None
