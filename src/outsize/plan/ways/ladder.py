"""The choice among the ways to run a training step: exact before approximate, then the fastest that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from outsize.plan.cost import StepCost
from outsize.plan.plan import Fuse, Plan, Rejected
from outsize.plan.step import StepFacts
from outsize.plan.times import OpSeconds
from outsize.plan.way import StepPart, StepRequest, Way, seconds_of
from outsize.plan.ways.ways import compiled, least, offloading, plain, recomputing, ways
from outsize.tiles.halo import Halo, Reach
from outsize.units import format_bytes, format_seconds

_LEAST_BYTES = 2**29
_UNSURE = 1.01
_MUCH_LONGER = 1.1  # than a recorded step: worth a word


def choose(
    task: StepRequest,
    *,
    limit_bytes: int,
    budget_bytes: float,
    approximate: bool,
    held_bytes: float | None = None,
) -> Plan | list[Way]:
    """Return the fastest way that fits, exact where there is one; or all ways where none will do.

    What a GPU's allocator holds stays within the limit, or within `held_bytes` where less is there.
    """
    task = _with_gaps(task, limit_bytes if held_bytes is None else held_bytes)
    first = plain(task)
    seen = [first, *compiled(task)]
    seen += [] if first.peak_bytes <= budget_bytes else ways(task, budget_bytes)
    fit = partial(_fastest, task, limit_bytes=limit_bytes, budget_bytes=budget_bytes)
    found = fit(seen, approximate=False)
    if isinstance(found, Plan):
        return found
    # the last of the exact ones, and by far the slowest
    found = fit([*seen, *offloading(task, budget_bytes)], approximate=approximate)
    return found if isinstance(found, Plan) else [*found, *least(task, found, budget_bytes)]


def choose_offloaded(
    task: StepRequest, *, limit_bytes: int, budget_bytes: float, held_bytes: float
) -> Plan | list[Way]:
    """Return the way that fits of those that leave weights on the host, for a step whose weights are there; or all."""
    task = _with_gaps(task, held_bytes)
    found = [way for way in offloading(task, budget_bytes) if way.fails is None]
    for way in found:
        if way.fits(budget_bytes):
            return _as_plan(task, way, (f"{way.name}: {way.needs}",), (), limit_bytes)
    return found


def choose_recompute(
    facts: StepFacts,
    op_s: OpSeconds,
    *,
    limit_bytes: int,
    budget_bytes: float,
    blocks_of: Callable[[tuple[str, ...]], StepFacts] | None = None,
    **times: Any,
) -> Plan | list[Way]:
    """Return the fastest way to run one step as it is written: plain, or recomputing and moving; or all of them.

    `op_s` and `times` are the settings of a clock, and the link to host memory with what there is of that, and modules
    that must `never` run again; `blocks_of` tells the facts of the step with blocks run again.
    """
    halo = Halo(Reach(0, 0), Reach(0, 0), 1)
    traced = None if blocks_of is None else lambda _, __, paths: blocks_of(paths)
    whole = StepRequest(1, 0, lambda *_: facts, op_s, halo, blocks_of=traced, **times)
    whole = _with_gaps(whole, limit_bytes)
    first = plain(whole)
    seen = [first, *recomputing(whole, StepPart("", 1, 1, 0), StepCost(facts), budget_bytes)]
    found = _fastest(whole, seen, limit_bytes=limit_bytes, budget_bytes=budget_bytes, approximate=False)
    return found if isinstance(found, Plan) else [*found, *least(whole, found, budget_bytes)]


def _with_gaps(task: StepRequest, held_bytes: float) -> StepRequest:
    """Return a task that on a GPU keeps a limit with gaps between tensors; a little memory is all gaps by that."""
    return replace(task, held_bytes=held_bytes) if task.overlaps and held_bytes >= _LEAST_BYTES else task


def _fastest(
    task: StepRequest, seen: list[Way], *, limit_bytes: int, budget_bytes: float, approximate: bool
) -> Plan | list[Way]:
    first = seen[0]
    faster = [way for way in seen[1:] if way.fits(budget_bytes) and way.step_s < first.step_s]
    if first.peak_bytes <= budget_bytes and not faster:
        reason = f"the plain step needs {format_bytes(first.peak_bytes)}: it fits, nothing has to be given up"
        return _as_plan(task, first, (reason, *_called(task, first)), (), limit_bytes)
    while True:
        running = [way for way in seen if way.fails is None]
        fitting = [way for way in running if way.fits(budget_bytes) and (approximate or way.inexact is None)]
        if not fitting:
            return running
        taken = min(fitting, key=lambda way: (way.inexact is not None, _known(way)))
        if taken.confirm is None:
            break
        seen = [way.confirm() if way is taken and way.confirm else way for way in seen]
    slower = taken.step_s / first.step_s - 1
    fits = first.peak_bytes <= budget_bytes
    needs = "it fits, but is not the fastest" if fits else f"more than {format_bytes(budget_bytes)}"
    why = [
        f"the plain step needs {format_bytes(first.peak_bytes)}, {needs}",
        f"{taken.name}: {taken.needs}, the fastest way found that fits, {format_seconds(taken.step_s)} predicted, "
        f"{slower:+.1%} against a plain step with memory enough",
    ]
    if taken.inexact:
        why.append(f"approximate: {taken.inexact}")
    rejected = tuple(_rejected(way, taken, budget_bytes, approximate) for way in seen if way is not taken)
    return _as_plan(task, taken, tuple(why), rejected, limit_bytes)


def _known(way: Way) -> float:
    """Return a way's time, a little more where a close look may tell otherwise, which takes seconds."""
    return way.step_s if way.confirm is None else _UNSURE * way.step_s


def _called(task: StepRequest, way: Way) -> tuple[str, ...]:
    """Say what a step takes that is not recorded, where that is longer: whether it can be is seen when it runs."""
    if not task.records:
        return ()
    called_s = seconds_of(task, 1, StepCost(task.step_of(task.batch, task.side_px)))
    if called_s <= _MUCH_LONGER * way.step_s:
        return ()
    recorded = f"{format_seconds(way.step_s)} is the time of a step that is recorded as one CUDA graph"
    return (f"{recorded}; called kernel by kernel it takes the host {format_seconds(called_s)}",)


def _rejected(way: Way, taken: Way, budget_bytes: float, approximate: bool) -> Rejected:
    if way.fails:
        return Rejected(way.name, f"does not run: {way.fails}")
    if not way.fits(budget_bytes):
        return Rejected(way.name, way.needs)
    if way.inexact and not (approximate and taken.inexact):
        return Rejected(way.name, f"approximate: {way.inexact}")
    return Rejected(way.name, f"slower: {format_seconds(way.step_s)} predicted")


def _as_plan(
    task: StepRequest, way: Way, why: tuple[str, ...], rejected: tuple[Rejected, ...], limit_bytes: int
) -> Plan:
    """Return the plan of a way. GPUs that share a batch leave no choice: what that changes is reported, not refused."""
    spread = () if task.spread is None else (f"approximate: {task.spread}",)
    return Plan(
        purpose="train",
        batch=task.batch,
        limit_bytes=limit_bytes,
        peak_bytes=way.peak_bytes,
        exact=way.inexact is None and task.spread is None,
        why=(*why, *spread),
        rejected=rejected,
        step_s=way.step_s,
        # compiled blocks fuse their layers themselves, and cross-entropy lies outside of them
        fuse=Fuse() if task.fuse is not None and "compile" in way.settings else task.fuse,
        **way.settings,
    )
