"""What `train` does when memory runs out: a tighter plan for the same model, reported and written to the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from outsize.errors import PlanError, explain
from outsize.job import Job
from outsize.plan.plan import Plan
from outsize.plan.sharing import part_of
from outsize.plan.staging import tighter_stages
from outsize.plan.tighten import tighter
from outsize.plan.ways import choose, choose_offloaded
from outsize.planning.jobs.planning import train_task
from outsize.planning.jobs.sharding import in_shards
from outsize.planning.trying import learn_from_shortage
from outsize.ranks import ALONE, World
from outsize.units import format_bytes

if TYPE_CHECKING:
    from torch import nn

    from outsize.plan.way import Way
    from outsize.planning.jobs.preparing import Prepared
    from outsize.strategies.step import Step
    from outsize.strategies.steps import Shortage, Tighten


def tightening(
    job: Job,
    prepared: Prepared,
    make_step: Callable[[Plan], Step],
    changed: Callable[[Plan, str], None],
    world: World = ALONE,
) -> Tighten:
    """Return what makes the next step after a shortage; `changed` gets each new plan and the reason in words.

    Several shortages follow one another down to the least that the planner knows; then its error ends the run.
    """
    from outsize.strategies.offload import can_begin_anew

    now = prepared.train_plan

    def tighten(shortage: Shortage) -> Step:
        nonlocal now
        if not can_begin_anew(prepared.model):
            raise PlanError(_cannot_repeat(now, shortage))
        make = next_plan if now.pipeline is None else _tighter_stages
        before, now = now, world.owners(lambda: make(now, shortage))
        changed(now, _changes(before, now, shortage))
        return make_step(now)

    def next_plan(now: Plan, shortage: Shortage) -> Plan:
        # As it was planned for: all of it is trained, to its last output. This phase may want less, and the next one
        # more; and one whose weights are on the host cannot be followed on shapes.
        model = prepared.card.build()
        ways = _ways(job, model, prepared, now, shortage)
        chosen = tighter(
            lambda budget_bytes: ways(budget_bytes=budget_bytes, held_bytes=shortage.available_bytes),
            now,
            wanted_bytes=shortage.wanted_bytes,
            available_bytes=shortage.available_bytes,
        )
        found = replace(chosen, spatial=now.spatial, replicate=now.replicate)  # batches are made ahead
        # else others have the memory or it is fragmented, and the prediction was right
        if shortage.wanted_bytes > now.peak_bytes and not shortage.num_closed:
            more = shortage.wanted_bytes / now.peak_bytes
            learn_from_shortage(job, model, len(prepared.bands), prepared.where, more)
        return found

    return tighten


def _tighter_stages(now: Plan, shortage: Shortage) -> Plan:
    """Let every stage keep what comes in alone, or smaller micro-batches go through, where that leaves a plan exact."""
    assert now.pipeline is not None
    found = tighter_stages(now.pipeline, now.batch, more_parts=not now.exact or now.pipeline.num_micro > 1)
    if found is None:
        need, remedy = "stages that keep less", "take more stages, a smaller train.batch or train.tile_px"
        raise PlanError(explain("memory ran out in a stage", shortage.message, need, remedy))
    why = (
        "every stage runs forward again"
        if found.num_micro == now.pipeline.num_micro
        else "smaller micro-batches"
    )
    return replace(now, pipeline=found, micro_batches=found.num_micro, why=(*now.why, why))


def _ways(
    job: Job, model: nn.Module, prepared: Prepared, now: Plan, shortage: Shortage
) -> Callable[..., Plan | list[Way]]:
    """Return what chooses among the ways that are left to a training: weights stay where its optimizer has them."""
    task = train_task(job, model, len(prepared.bands), prepared.facts.halo, prepared.where)
    if now.replicate is not None:
        task = in_shards(task, model, now.replicate.shards)
    if now.spatial is not None:
        task = part_of(task, now.spatial, now.batch)
    task = replace(task, pages=False)  # they leave nothing to try if they fail
    # steps that still run give it back to the next ones
    if shortage.num_closed and now.swap is not None:
        task = replace(task, host_bytes=task.host_bytes + now.swap.pinned_bytes)
    if now.offload is not None:
        task = replace(task, host_bytes=task.host_bytes + now.offload.host_bytes)  # which is there already
        return partial(choose_offloaded, task, limit_bytes=now.limit_bytes)
    approximate = job.limits.allow_approximate
    return partial(choose, replace(task, weights={}), limit_bytes=now.limit_bytes, approximate=approximate)


def _changes(before: Plan, now: Plan, shortage: Shortage) -> str:
    needs = f"a plan that needs {format_bytes(now.peak_bytes)}: {now.why[-1]}"
    if shortage.num_closed:
        return f"memory is fragmented, {shortage.message}: steps go on by {needs}"
    wanted = f"{format_bytes(shortage.wanted_bytes)} wanted" if shortage.wanted_bytes else shortage.message
    return (
        f"memory ran out: {format_bytes(before.peak_bytes)} predicted, {wanted}, "
        f"{format_bytes(shortage.available_bytes)} available; the batch is repeated by {needs}"
    )


def _cannot_repeat(plan: Plan, shortage: Shortage) -> str:
    """Say that torch's offload is left in the middle of a step by an error in backward, and cannot start over."""
    return explain(
        "memory ran out in a training whose weights are on the host, where a step cannot be repeated",
        f"{format_bytes(shortage.available_bytes)} available: {shortage.message}",
        f"{format_bytes(plan.peak_bytes)} as planned, and more",
        "free memory on the device or set limits.gpu_memory lower, and go on with --resume",
    )
