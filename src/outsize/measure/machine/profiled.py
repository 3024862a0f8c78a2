"""Learns from real steps on the machine at hand: what kernels and the host take, and what the allocator holds idle."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from outsize.measure.machine import operations
from outsize.measure.machine.operations import SeenOperations, look_at_operations
from outsize.measure.machine.remembered import (
    cache_folder,
    code_of,
    fingerprint,
    is_between,
    key_of,
    recall_or_make,
    recalled,
    remember,
)
from outsize.plan import seen as seen_before
from outsize.plan import times
from outsize.plan.effort import NUM_TIMED, NUM_WARM, TIMED_S
from outsize.plan.seen import grouped, is_convolution, is_fused, paced
from outsize.plan.step import StepOp
from outsize.plan.times import CLASSES, NORM_GRADIENTS, NORMS, Clock, Learnt, class_of, host_calls
from outsize.units import Size, parse_size

# Tensors fill no more than this of what the allocator holds even where one step happened to leave no gap; and gaps of
# a small step, whose blocks are rounded up to 2 or 20 MiB, say nothing about a large one.
MOST_USABLE, LEAST_USABLE = 0.95, 0.75
# Beyond, it is no matter of gaps: the step waited for its host all the same. And the profiler slows nothing by more.
_MOST_STRETCHED = 1.15
# What no step falls short of or goes beyond, by far: seconds of a call, real over modelled time, bytes of a workspace
_LONGEST_CALL_S, _SLOWEST, _MOST_BYTES = 10.0, 1e9, 2**50
_CYCLES_PER_S = 4e9  # more than any GPU's clock has: a pause lasts at least as long as was asked
_BACKWARD = "autograd::engine::evaluate_function"  # what torch's profiler calls a node of the way back
_NOT_WORK = (
    "Activity Buffer Request"  # the profiler's own; it is given the time of a kernel that has an owner
)


@dataclass(frozen=True)
class Seen:
    """One step as it was, and the time of several."""

    kernels_s: dict[str, float]  # by class of operation; on a CPU the operations themselves
    host_s: float  # until a step was launched; on a CPU what no operation took
    step_s: float
    usable_share: float | None  # of the memory that torch held, what tensors filled
    device_s: float = 0.0  # of a GPU for a step that never waits for the host; 0: not to be seen on a CPU
    operations: SeenOperations = field(default_factory=SeenOperations)


def learn(
    run: Callable[[], object],
    ops: Sequence[StepOp],
    clock: Clock,
    device: torch.device,
    *,
    batch: int,
    side_px: Size,
) -> Learnt:
    """Run a step that consists of these operations a few times, and compare it with what the clock says."""
    return taught_by(look_at(run, device), ops, clock, batch=batch, side_px=side_px)


def taught_by(seen: Seen, ops: Sequence[StepOp], clock: Clock, *, batch: int, side_px: Size) -> Learnt:
    """Return what a step that was seen, and that consists of these operations, teaches beyond what the clock says."""
    host_op_s = seen.host_s / max(1.0, sum(map(host_calls, ops)))
    paces, factors = _paces(seen.operations.seconds, ops, clock), _factors(seen, ops, clock)
    learnt = Learnt(factors, host_op_s, seen.usable_share, batch, side_px, seen.operations.workspaces, paces)
    return _stretched(learnt, seen, ops, clock) if paces else learnt


def _factors(seen: Seen, ops: Sequence[StepOp], clock: Clock) -> dict[str, float]:
    """Return real over modelled time of each class; what the profiler knows of no operation belongs to our norms alone.

    In other classes that is more than our few kernels there, so nothing is learnt about them.
    """
    if not seen.operations.seconds:
        return _shares(seen.kernels_s, clock.by_class(ops))
    taken_s = seen.operations.by_class()
    factors = _shares(taken_s, clock.by_class([op for op in ops if not is_fused(op.kind)]))
    unseen = clock.by_class([op for op in ops if is_fused(op.kind)])
    left_s = {name: seen.kernels_s[name] - taken_s.get(name, 0.0) for name in (NORMS, NORM_GRADIENTS)}
    return factors | _shares(left_s, unseen)


def _shares(real_s: Mapping[str, float], modelled_s: Mapping[str, float]) -> dict[str, float]:
    """Divide where there is something to divide: a class that hardly occurs may hold what nobody counts."""
    names = [name for name in CLASSES if modelled_s[name] > 0 and real_s.get(name, 0.0) > 0]
    return {name: real_s[name] / modelled_s[name] for name in names}


def _stretched(learnt: Learnt, seen: Seen, ops: Sequence[StepOp], clock: Clock) -> Learnt:
    """Return times that add up to that of the step.

    Between kernels there are gaps, and some belong to no operation; while each is looked at, they take longer.
    """
    taught = clock.taught(learnt)
    total_s = sum(taught.op_s(op) for op in paced(ops, learnt.paces))
    if total_s <= 0 or seen.device_s <= 0:
        return learnt
    by = min(_MOST_STRETCHED, max(1 / _MOST_STRETCHED, seen.device_s / total_s))
    factors = {name: by * learnt.factors.get(name, 1.0) for name in CLASSES}
    paces = {group: [by * pace for pace in found] for group, found in learnt.paces.items()}
    return replace(learnt, factors=factors, paces=paces)


def look_at(run: Callable[[], object], device: torch.device) -> Seen:
    """Time a step, then profile it once; the first ones are not counted."""
    cuda = device.type == "cuda"
    for _ in range(NUM_WARM):
        run()
    usable_share = _usable_share(run, device) if cuda else None
    host_s, step_s = _by_the_clock(run, device)
    kernels_s = _profiled(run, device)
    if not cuda:
        return Seen(kernels_s, max(0.0, step_s - sum(kernels_s.values())), step_s, usable_share)
    device_s = _device_seconds(run, device, host_s)
    return Seen(kernels_s, host_s, step_s, usable_share, device_s, look_at_operations(run, device))


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


def _paces(
    seconds: Mapping[str, Sequence[float]], ops: Sequence[StepOp], clock: Clock
) -> dict[str, list[float]]:
    """Return real over modelled time of each operation, by group; of all together where others ran than are listed."""
    paces = {}
    for group, found in grouped(ops).items():
        modelled_s, seen_s = [clock.op_s(op) for op in found], seconds.get(group, [])
        if sum(modelled_s) > 0 and len(seen_s) == len(found):
            pairs = zip(seen_s, modelled_s, strict=True)
            paces[group] = [real_s / own_s if own_s > 0 else 0.0 for real_s, own_s in pairs]
        elif sum(modelled_s) > 0 and sum(seen_s) > 0:
            paces[group] = [sum(seen_s) / sum(modelled_s)]
    return paces


def lower_quartile(taken_s: Sequence[float]) -> float:
    """Return the time of the slowest of the fastest quarter: what neighbours on the machine take is not the step's."""
    return sorted(taken_s)[len(taken_s) // 4]


def recall_or_learn(
    names: Sequence[str],
    device: torch.device,
    learn_now: Callable[[], Learnt | None],
    tell: Callable[[str], object] = lambda _: None,
    is_enough: Callable[[Learnt], bool] = lambda _: True,
) -> Learnt | None:
    """Return what was learnt before of a step with these names on this very device and torch, or learn it now.

    What was learnt and `is_enough` no longer is learnt anew.
    """

    def read(path: Path) -> Learnt | None:
        known = _recall(path)
        return known if known is None or is_enough(known) else None

    name = _file_name(names, device)
    return recall_or_make(cache_folder(), name, device, read=read, make=learn_now, tell=tell)


def recall_lesson(names: Sequence[str], device: torch.device) -> Learnt | None:
    """Return what is remembered of a step with these names; None where nothing is."""
    folder = cache_folder()
    return None if folder is None else _recall(folder / _file_name(names, device))


def relearn(names: Sequence[str], device: torch.device, *, at_most: float) -> None:
    """Remember of a step of which something is remembered that no more than this share is usable."""
    folder, name = cache_folder(), _file_name(names, device)
    known = None if folder is None else _recall(folder / name)
    if folder is not None and known is not None and known.usable_share is not None:
        remember(folder, name, replace(known, usable_share=min(known.usable_share, at_most)))


def _file_name(names: Sequence[str], device: torch.device) -> str:
    # factors are over modelled times: another model of times makes them worthless
    code = code_of(times, seen_before, operations, sys.modules[__name__])
    return f"step-{key_of([*names, *code, fingerprint(device)])}.json"


def name_of(model: nn.Module) -> str:
    """Return a text that differs where models do: modules with their settings, parameters with their sizes."""
    sizes = (f"{name} {tuple(each.shape)} {each.requires_grad}" for name, each in model.named_parameters())
    return "\n".join([repr(model), *sizes])


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


def _recall(path: Path) -> Learnt | None:
    """Read what was remembered; None for a file that is not there, broken or not sound."""
    try:
        known = Learnt(**recalled(path))
        known = replace(known, side_px=parse_size(known.side_px))
        sound = set(known.factors) <= set(CLASSES) and is_between(0, [known.host_op_s], _LONGEST_CALL_S)
        sound &= is_between(0, known.factors.values(), _SLOWEST)
        sound &= all(is_between(0, found, _SLOWEST) for found in known.paces.values())
        sound &= all(
            type(num) is int and 0 <= num < _MOST_BYTES
            for taken in known.workspaces.values()
            for num in taken
        )
        sound &= (
            type(known.batch) is int and known.batch > 0 and is_between(0, [known.room_bytes], _MOST_BYTES)
        )
        sound &= known.usable_share is None or LEAST_USABLE <= known.usable_share <= MOST_USABLE
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return known if sound else None
