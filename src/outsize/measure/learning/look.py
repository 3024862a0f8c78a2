"""Looks at real steps on the machine at hand: what kernels and the host take, and what the allocator holds idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from outsize.measure.learning.operations import SeenOperations, look_at_operations
from outsize.plan.effort import NUM_TIMED, NUM_WARM, TIMED_S
from outsize.plan.seen import is_convolution
from outsize.plan.times import CLASSES, class_of

# Tensors fill no more than this of what the allocator holds even where one step happened to leave no gap; and gaps of
# a small step, whose blocks are rounded up to 2 or 20 MiB, say nothing about a large one.
MOST_USABLE, LEAST_USABLE = 0.95, 0.75
_CYCLES_PER_S = 4e9  # more than any GPU's clock has: a pause lasts at least as long as was asked
_BACKWARD = "autograd::engine::evaluate_function"  # what torch's profiler calls a node of backward
# the profiler's own; it is given the time of a kernel that has an owner
_NOT_WORK = "Activity Buffer Request"


@dataclass(frozen=True)
class SeenStep:
    """One step as it was, and the time of several."""

    kernels_s: dict[str, float]  # by class of operation; on a CPU the operations themselves
    host_s: float  # until a step was launched; on a CPU what no operation took
    step_s: float
    usable_share: float | None  # of the memory that torch held, what tensors filled
    device_s: float = 0.0  # of a GPU for a step that never waits for the host; 0: not to be seen on a CPU
    operations: SeenOperations = field(default_factory=SeenOperations)


def look_at(run: Callable[[], object], device: torch.device) -> SeenStep:
    """Time a step, then profile it once; the first ones are not counted."""
    cuda = device.type == "cuda"
    for _ in range(NUM_WARM):
        run()
    usable_share = _usable_share(run, device) if cuda else None
    host_s, step_s = _by_the_clock(run, device)
    kernels_s = _profiled(run, device)
    if not cuda:
        return SeenStep(kernels_s, max(0.0, step_s - sum(kernels_s.values())), step_s, usable_share)
    device_s = _device_seconds(run, device, host_s)
    return SeenStep(kernels_s, host_s, step_s, usable_share, device_s, look_at_operations(run, device))


def device_and_host_s(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return what one step takes of the device, and of the host, which calls it; on a CPU all of it and nothing."""
    for _ in range(NUM_WARM):
        run()
    host_s, step_s = _by_the_clock(run, device)
    return (_device_seconds(run, device, host_s), host_s) if device.type == "cuda" else (step_s, 0.0)


def _by_the_clock(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return the time until a step was called, and until it was done."""
    hosts_s: list[float] = []
    steps_s: list[float] = []
    while len(steps_s) < NUM_TIMED and (len(steps_s) < 2 or sum(steps_s) < TIMED_S):
        _wait_for(device)
        start_s = time.perf_counter()
        run()
        hosts_s.append(time.perf_counter() - start_s)
        _wait_for(device)
        steps_s.append(time.perf_counter() - start_s)
    return lower_quartile(hosts_s), lower_quartile(steps_s)


def _device_seconds(run: Callable[[], object], device: torch.device, host_s: float) -> float:
    """Return the time of a step on the device alone: it pauses first, until the host has called all of it.

    host    |call|call|call|call|
    device  |.... pause ......|===kernel===|==kernel==|=kernel=|
                              start                            end

    A GPU's queue has room for about a thousand kernels; of a longer step the host calls the rest while it runs.
    """
    taken_s: list[float] = []
    with torch.cuda.device(device):
        while len(taken_s) < NUM_TIMED and (len(taken_s) < 2 or sum(taken_s) < TIMED_S):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            _wait_for(device)
            torch.cuda._sleep(round(1.5 * host_s * _CYCLES_PER_S))  # torch's only name for it
            start.record()
            run()
            end.record()
            _wait_for(device)
            taken_s.append(start.elapsed_time(end) / 1e3)
    return lower_quartile(taken_s)


def lower_quartile(taken_s: Sequence[float]) -> float:
    """Return the time of the slowest of the fastest quarter: what neighbours on the machine take is not the step's."""
    return sorted(taken_s)[len(taken_s) // 4]


def _profiled(run: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Return the time that one step's kernels take, by class of operation."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with profile(activities=activities) as seen:
        run()
        _wait_for(device)
    found = dict.fromkeys(CLASSES, 0.0)
    for event in seen.events() or ():
        if event.device_type.name != "CPU" or event.name == _NOT_WORK:
            continue  # a kernel itself, whose time its operation has already
        micros = event.self_device_time_total if cuda else event.self_cpu_time_total
        if cuda or event.name.startswith("aten::"):
            kind = _kind(event)
            found[class_of(kind, backward=_is_backward(event))] += micros / 1e6
    return found


def _kind(event: Any) -> str:
    """Return torch's name of what a kernel belongs to: the bias that a convolution adds is counted with it."""
    for each in _upwards(event):
        kind = str(each.name).removeprefix("aten::")
        if is_convolution(kind):
            return kind
    return str(event.name).removeprefix("aten::")


def _is_backward(event: Any) -> bool:
    return any(each.name.startswith(_BACKWARD) for each in _upwards(event))


def _upwards(event: Any) -> Iterator[Any]:
    """Yield an event of the profiler, and all that it is a part of."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _usable_share(run: Callable[[], object], device: torch.device) -> float:
    """Return the most that tensors held at once over the most that the allocator held, of steps from an empty cache."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(2):
        run()
    torch.cuda.synchronize(device)
    share = torch.cuda.max_memory_allocated(device) / max(1, torch.cuda.max_memory_reserved(device))
    return min(MOST_USABLE, max(LEAST_USABLE, share))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
