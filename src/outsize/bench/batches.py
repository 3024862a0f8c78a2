"""Batches up to out of memory: time of a step, samples a second, what GPU and host are busy with.

batches set up, the smallest first, until one has no room | rounds of all that run, in turns, until time is over
                                                            each in a process of its own: they differ by more than turns
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from outsize.bench.apart import GivenStep, process
from outsize.bench.gauge import Run, capped, weigh_on_cpu
from outsize.bench.measured_step import batch_bytes, resident_bytes
from outsize.errors import one_line
from outsize.measure.memory import ran_out, sweep
from outsize.measure.usage import watching
from outsize.measurement import Figure
from outsize.plan.plan import unplanned
from outsize.progress import Reporter
from outsize.train.made_up import MadeUpStep
from outsize.units import format_bytes

LEAST_ROUNDS = 3  # that a spread is made of
_LONGER = 2.0  # that the next batch takes, times the last one
_TURN_S = 0.4  # that a turn lasts at least
_MOST_STEPS = 200  # of a turn
_OUT = "out of memory"
_SAMPLED_S = 0.1  # from one look at the GPU to the next


Usage = dict[str, Any]
Turns = Iterable[tuple[int, float, Usage]]  # batch, seconds of a step, what was used meanwhile


@dataclass(frozen=True)
class Expected:
    """What is predicted of a plain step."""

    peak_bytes: int
    step_s: float


@dataclass
class BatchEntry:
    """One batch on its course through the rounds."""

    batch: int
    expected: Expected
    failed: str | None = None
    peak_bytes: int | None = None
    steps_s: list[float] = field(default_factory=list)  # one for each turn
    usage: list[Usage] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether it had no room: no larger one has any."""
        return self.failed is not None and self.failed.startswith(_OUT)

    def as_row(self) -> dict[str, Any]:
        """Return the JSON form; of a GPU that is not there, None."""
        row: dict[str, Any] = {"batch": self.batch, "failed": self.failed, "peak_bytes": self.peak_bytes}
        row |= {"predicted_peak_bytes": self.expected.peak_bytes, "predicted_step_s": self.expected.step_s}
        if self.steps_s:
            each = [("step_s", self.steps_s), ("s_per_sample", [s / self.batch for s in self.steps_s])]
            each.append(("samples_per_s", [self.batch / s for s in self.steps_s]))
            row |= {name: Figure.of(values).as_dict() for name, values in each}
        row |= {name: _mean(self.usage, name) for name in ("gpu_use", "cpu_load")}
        return row | {name: _most(self.usage, name) for name in ("gpu_bytes", "gpu_own_bytes", "host_bytes")}


def measure_batches(
    batches: Sequence[int],
    step_for: Callable[[int], MadeUpStep],
    expect: Callable[[int], Expected],
    take_round: Callable[[Sequence[int]], Turns],
    *,
    limit_bytes: int,
    rounds: int,
    max_s: float,
    reporter: Reporter,
) -> list[BatchEntry]:
    """Run batches once here and then in rounds, and return what was seen; one that is out of memory ends the list."""
    end_s = time.perf_counter() + max_s
    entries: list[BatchEntry] = []
    first_s: list[float] = []  # that batches took until now, once each
    for batch in batches:
        start_s = time.perf_counter()
        if first_s and start_s + LEAST_ROUNDS * (sum(first_s) + _LONGER * first_s[-1]) > end_s:
            reporter.say(
                "batch", f"batch {batch} and more are left out: give them time by --minutes", batch=batch
            )
            break
        entry = BatchEntry(batch, expect(batch))
        entries.append(entry)
        _set_up(entry, step_for, limit_bytes)
        told = entry.failed or f"{format_bytes(entry.peak_bytes or 0)} at its peak"
        reporter.say("batch", f"batch {batch}: {told}", batch=batch, failed=entry.failed)
        if entry.is_over:
            break
        first_s.append(time.perf_counter() - start_s)
    running = {each.batch: each for each in entries if each.failed is None}
    with reporter.bar("rounds", rounds * len(running), "turns") as bar:
        for number in range(rounds):
            if number >= LEAST_ROUNDS and time.perf_counter() > end_s:
                break
            order = [*running]
            first = number % max(1, len(order))
            for batch, step_s, usage in take_round([*order[first:], *order[:first]]):
                running[batch].steps_s.append(step_s)
                running[batch].usage.append(usage)
                bar.advance(1, batch=batch, ms=round(1e3 * step_s, 2))
    return entries


def rounds_apart(given: GivenStep, limit_bytes: int) -> Callable[[Sequence[int]], Turns]:
    """Return what takes a round in a process that is started for it."""

    def take_round(batches: Sequence[int]) -> Turns:
        with process(_take_turns, given, list(batches), limit_bytes) as pipe:
            for _ in batches:
                yield pipe.recv()

    return take_round


def _take_turns(pipe: Connection, given: GivenStep, batches: Sequence[int], limit_bytes: int) -> None:
    """Run batches one after the other, and say of each what was seen."""
    first = given.with_batch(min(batches)).make()
    for batch in batches:
        step = given.batch_for(first, batch)
        pipe.send((batch, *_take_turn(step, batch, limit_bytes)))


def _set_up(entry: BatchEntry, step_for: Callable[[int], MadeUpStep], limit_bytes: int) -> None:
    """Run a batch for the first time and weigh it; nobody takes memory from a host that is not there."""
    limit = f"{format_bytes(limit_bytes)} there"
    device: torch.device | None = None
    try:
        step = step_for(entry.batch)
        device = step.device
        if device.type == "cpu" and entry.expected.peak_bytes > limit_bytes:
            entry.failed = f"{_OUT}: {format_bytes(entry.expected.peak_bytes)} predicted, {limit}"
            return
        run = _running(step)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            with capped(device, limit_bytes):
                run()
                torch.cuda.synchronize(device)
            entry.peak_bytes = torch.cuda.max_memory_allocated(device)
        else:
            entry.peak_bytes = weigh_on_cpu(run, resident_bytes(step) + batch_bytes(step))
    except RuntimeError as error:
        entry.failed = f"{_OUT}: {limit}" if ran_out(error) else f"does not run: {one_line(error)}"
    except ValueError as error:  # a norm that wants more than one sample
        entry.failed = f"does not run: {one_line(error)}"
    if device is not None:
        step = run = None  # type: ignore[assignment]
        sweep(device)  # rounds are in other processes, which need the room


def _take_turn(step: MadeUpStep, batch: int, limit_bytes: int) -> tuple[float, Usage]:
    """Run a step a few times, after once: a process that is new asks for memory and looks for kernels."""
    run, device = _running(step), step.device
    with capped(device, limit_bytes) if device.type == "cuda" else nullcontext():
        _steps_s(run, device, 1)
        num = max(1, min(_MOST_STEPS, math.ceil(_TURN_S / _steps_s(run, device, 1))))
        with watching(device, every_s=_SAMPLED_S) as usage:
            step_s = _steps_s(run, device, num) / num
            return step_s, usage.summary(num * batch, images_at_once=batch)


def _steps_s(run: Run, device: torch.device, num: int) -> float:
    """Return how long so many steps take, one behind the other."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    for _ in range(num):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s


def _running(step: MadeUpStep) -> Run:
    return step.runs(step.composed(unplanned()))


def _mean(usage: Sequence[Usage], name: str) -> float | None:
    known = [each[name] for each in usage if each[name] is not None]
    return round(sum(known) / len(known), 4) if known else None


def _most(usage: Sequence[Usage], name: str) -> int | None:
    return max((each[name] for each in usage if each[name] is not None), default=None)
