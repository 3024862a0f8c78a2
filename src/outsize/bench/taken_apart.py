"""Steps of a training under torch.profiler, taken apart: what ran when, and what nothing else covers.

host    |wait for data|====== step ======|wait|====== step ======|      marks of ours in the trace
device                 |==kernels==|copy|==|                            on a GPU, from the same trace
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from outsize.bench.verdict import Parts
from outsize.data.batch import Batch
from outsize.measure.shared import crowding
from outsize.measurement import Figure
from outsize.report.timeline import Span

WAIT, STEP = "wait for data", "step"
KERNELS, TO_DEVICE, TO_HOST, OTHERS = "kernels", "host to device", "device to host", "communication"
_US = 1e-6
_NUM_MADE = 3  # batches that are made by themselves, to see what one takes

Intervals = list[tuple[float, float]]


@dataclass(frozen=True)
class Made:
    """What making one batch takes, by one worker."""

    wall_s: float
    computing_s: float
    crowding: float  # of the cores meanwhile


@dataclass(frozen=True)
class TakenApart:
    """Profiled steps: their spans from the first on, in seconds, and the time of steps that were not profiled."""

    spans: tuple[Span, ...]
    num_steps: int
    step_s: Figure  # without the profiler, from batch to batch
    wait_s: Figure
    to_device_bytes: int  # in all profiled steps
    to_host_bytes: int
    cores_s: float = 0.0  # of this process in a step, on all its cores


def run_steps(
    batches: Iterator[Batch],
    step: Callable[[Batch], object],
    trace: Path,
    device: torch.device,
    *,
    num_warm: int,
    num_timed: int,
    num_profiled: int,
) -> TakenApart:
    """Run steps until they are steady, time some, and profile some; leaves a trace that Perfetto opens."""
    for _ in range(num_warm):
        step(next(batches))
    waits_s, steps_s = [], []
    _settle(device)
    cpu_s = time.process_time()
    for _ in range(num_timed):
        start_s = time.perf_counter()
        batch = next(batches)
        waits_s.append(time.perf_counter() - start_s)
        step(batch)
        _settle(device)
        steps_s.append(time.perf_counter() - start_s)
    cores_s = (time.process_time() - cpu_s) / num_timed
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=activities) as profiler:
        for _ in range(num_profiled):
            with record_function(WAIT):
                batch = next(batches)
            with record_function(STEP):
                step(batch)
                _settle(device)
    profiler.export_chrome_trace(str(trace))
    spans, moved = spans_of(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])
    figures = Figure.of(steps_s), Figure.of(waits_s)
    return TakenApart(tuple(spans), num_profiled, *figures, moved[TO_DEVICE], moved[TO_HOST], cores_s)


def time_making(make: Callable[[int], object]) -> Made:
    """Return how long one worker takes for a batch, and how much of it is computing rather than waiting for files.

    Others may have the cores: what a loop that only computes loses to them, making a batch is taken to lose, too.
    """
    make(0)  # opens files
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for number in range(_NUM_MADE):
        make(number + 1)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    crowded = crowding()
    return Made(wall_s / _NUM_MADE, min(wall_s, cpu_s * crowded) / _NUM_MADE, crowded)


def spans_of(events: Iterable[dict[str, Any]]) -> tuple[list[Span], dict[str, int]]:
    """Return what a trace tells of data, steps, kernels and copies, from the first on; and the bytes of copies."""
    found, moved = [], {TO_DEVICE: 0, TO_HOST: 0}
    for event in events:
        kind = _kind(event)
        if kind is None:
            continue
        start_s = float(event["ts"]) * _US
        found.append(Span(kind, start_s, start_s + float(event.get("dur", 0.0)) * _US))
        if kind in moved:
            moved[kind] += int(event.get("args", {}).get("bytes", 0))
    first_s = min((each.start_s for each in found), default=0.0)
    shifted = [Span(each.kind, each.start_s - first_s, each.end_s - first_s) for each in found]
    return sorted(shifted, key=lambda each: each.start_s), moved


def _kind(event: dict[str, Any]) -> str | None:
    name, category = str(event.get("name", "")), event.get("cat")
    if category == "user_annotation" and name in (WAIT, STEP):
        return name
    if category == "kernel":
        return OTHERS if "nccl" in name.lower() else KERNELS
    if category == "gpu_memcpy":
        return TO_DEVICE if "HtoD" in name else TO_HOST if "DtoH" in name else KERNELS
    return KERNELS if category == "gpu_memset" else None


def parts_of(found: TakenApart, *, swaps: bool) -> Parts:
    """Return where the time of one step goes; on a CPU a step computes from its begin to its end.

    On a GPU each moment counts once: kernels first, then what it waits for while none runs.
    """
    by_kind = {kind: _joined(found.spans, kind) for kind in (WAIT, STEP, KERNELS, TO_DEVICE, TO_HOST, OTHERS)}
    num = found.num_steps
    waiting_s = found.wait_s.median
    if not by_kind[KERNELS]:
        return Parts(found.step_s.median, waiting_s, compute_s=found.step_s.median - waiting_s)
    profiled_s = _length(by_kind[STEP]) / num
    scale = (found.step_s.median - waiting_s) / profiled_s  # the profiler makes steps longer
    kernels = _within(by_kind[KERNELS], by_kind[STEP])
    others = _without(_within(by_kind[OTHERS], by_kind[STEP]), kernels)
    copies = _merged([*by_kind[TO_DEVICE], *by_kind[TO_HOST]])
    copies = _without(_without(_within(copies, by_kind[STEP]), kernels), others)
    compute_s, others_s, copies_s = (scale * _length(each) / num for each in (kernels, others, copies))
    return Parts(
        found.step_s.median,
        waiting_s,
        copying_s=0.0 if swaps else copies_s,
        compute_s=compute_s,
        stall_s=copies_s if swaps else 0.0,
        communication_s=others_s,
        gap_s=max(0.0, found.step_s.median - waiting_s - compute_s - others_s - copies_s),
    )


def rates_of(found: TakenApart) -> dict[str, float | None]:
    """Return bytes per second of copies each way while they ran; None where there were none."""
    sizes = ((TO_DEVICE, found.to_device_bytes), (TO_HOST, found.to_host_bytes))
    lengths = {kind: _length(_joined(found.spans, kind)) for kind, _ in sizes}
    return {kind: size / lengths[kind] if size and lengths[kind] else None for kind, size in sizes}


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _joined(spans: Sequence[Span], kind: str) -> Intervals:
    return _merged([(each.start_s, each.end_s) for each in spans if each.kind == kind])


def _merged(intervals: Intervals) -> Intervals:
    """Return intervals that do not overlap, in order."""
    found: Intervals = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _within(intervals: Intervals, others: Intervals) -> Intervals:
    pairs = ((max(a, c), min(b, d)) for a, b in intervals for c, d in others if a < d and c < b)
    return [(start, end) for start, end in pairs if start < end]


def _without(intervals: Intervals, others: Intervals) -> Intervals:
    found = intervals
    for c, d in others:
        found = [
            part
            for a, b in found
            for part in (((a, min(b, c)), (max(a, d), b)) if a < d and c < b else ((a, b),))
            if part[0] < part[1]
        ]
    return found


def _length(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)
