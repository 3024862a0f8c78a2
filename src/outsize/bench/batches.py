"""Batches up to out of memory: time of a step, samples a second, what GPU and host are busy with.

batches set up, the smallest first, until one has no room | rounds of all that run, in turns, until time is over
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

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
    step: MadeUpStep | None = None
    failed: str | None = None
    peak_bytes: int | None = None
    steps_s: list[float] = field(default_factory=list)  # one for each turn
    usage: list[dict[str, Any]] = field(default_factory=list)

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
    *,
    limit_bytes: int,
    rounds: int,
    max_s: float,
    reporter: Reporter,
) -> list[BatchEntry]:
    """Run batches in turns and return what was seen; one that is out of memory ends the list."""
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
    running = [each for each in entries if each.step is not None]
    with reporter.bar("rounds", rounds * len(running), "turns") as bar:
        for number in range(rounds):
            if number >= LEAST_ROUNDS and time.perf_counter() > end_s:
                break
            first = number % max(1, len(running))
            for entry in (*running[first:], *running[:first]):
                _take_turn(entry, limit_bytes)
                bar.advance(1, batch=entry.batch, ms=round(1e3 * entry.steps_s[-1], 2))
    return entries


def _set_up(entry: BatchEntry, step_for: Callable[[int], MadeUpStep], limit_bytes: int) -> None:
    """Run a batch for the first time and weigh it; nobody takes memory from a host that is not there."""
    limit = f"{format_bytes(limit_bytes)} there"
    try:
        step = step_for(entry.batch)
        entry.step = step
        if step.device.type == "cpu" and entry.expected.peak_bytes > limit_bytes:
            entry.failed = f"{_OUT}: {format_bytes(entry.expected.peak_bytes)} predicted, {limit}"
            entry.step = None
            return
        run = _running(step)
        if step.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(step.device)
            with capped(step.device, limit_bytes):
                run()
                torch.cuda.synchronize(step.device)
            entry.peak_bytes = torch.cuda.max_memory_allocated(step.device)
        else:
            entry.peak_bytes = weigh_on_cpu(run, resident_bytes(step) + batch_bytes(step))
    except RuntimeError as error:
        entry.failed = f"{_OUT}: {limit}" if ran_out(error) else f"does not run: {one_line(error)}"
    except ValueError as error:  # a norm that wants more than one sample
        entry.failed = f"does not run: {one_line(error)}"
    if entry.failed is not None and entry.step is not None:
        device, entry.step = entry.step.device, None
        sweep(device)


def _take_turn(entry: BatchEntry, limit_bytes: int) -> None:
    assert entry.step is not None
    run, device = _running(entry.step), entry.step.device
    if device.type == "cuda":
        with capped(device, limit_bytes):
            _watch_turn(entry, run, device)
    else:
        _watch_turn(entry, run, device)


def _watch_turn(entry: BatchEntry, run: Run, device: torch.device) -> None:
    # a step that is long needs none before it: caches and clocks are its own
    once_s = entry.steps_s[-1] if entry.steps_s else 0.0
    once_s = once_s if once_s > _TURN_S else _steps_s(run, device, 1)
    num = max(1, min(_MOST_STEPS, math.ceil(_TURN_S / once_s)))
    with watching(device, every_s=_SAMPLED_S) as usage:
        entry.steps_s.append(_steps_s(run, device, num) / num)
        entry.usage.append(usage.summary(num * entry.batch, images_at_once=entry.batch))


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


def _mean(usage: Sequence[dict[str, Any]], name: str) -> float | None:
    known = [each[name] for each in usage if each[name] is not None]
    return round(sum(known) / len(known), 4) if known else None


def _most(usage: Sequence[dict[str, Any]], name: str) -> int | None:
    return max((each[name] for each in usage if each[name] is not None), default=None)
