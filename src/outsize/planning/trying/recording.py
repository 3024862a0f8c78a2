"""Decides whether a job's step runs as one CUDA graph: where that is no slower, and there is memory to keep it."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outsize.job import Job
from outsize.plan.effort import Effort, why_no_trial
from outsize.plan.plan import Plan, Rejected
from outsize.planning.situation import Situation, may_record
from outsize.planning.trying import graph_trial
from outsize.planning.trying.graph_trial import GraphTrial, Recorded, cannot_be, try_aside
from outsize.progress import Reporter
from outsize.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from torch import nn

_MOST = 2**50  # of seconds or bytes, that no step goes beyond
_LONG_S = 0.2  # a step that is predicted to take longer is not made of short kernels
# Of the time that it takes kernel by kernel in a process that does nothing else: as fast will do, for in a training the
# host has batches to bring as well (a step of 22 ms took 31 there).
_WORTH = 1.03


def recorded_where_faster(
    job: Job,
    model: nn.Module,
    num_bands: int,
    train_plan: Plan,
    predict_plan: Plan,
    where: Situation,
    reporter: Reporter,
    effort: Effort | None = None,
) -> Plan:
    """Return the plan of training with a recorded step where that is faster, and fits beside validation."""
    from outsize.plan.limits import usable_bytes

    if not _is_worth_a_trial(job, train_plan, where):
        return train_plan
    found = _recall_or_try(job, model, num_bands, train_plan, where, reporter, effort or Effort())
    times = f"{format_seconds(found.replayed_s)} in place of {format_seconds(found.called_s)} seen here"
    why_not = found.why_not
    if not why_not and found.replayed_s > _WORTH * found.called_s:
        why_not = f"slower: {times}"
    # under a tight plan it is let go for a validation, and was tried within the limit
    beside_bytes = 0 if train_plan.is_tight else found.held_bytes + predict_plan.peak_bytes
    if not why_not and beside_bytes > usable_bytes(where.machine, job.limits):
        why_not = f"it would keep {format_bytes(found.held_bytes)} while a validation runs"
    if why_not:
        rejected = Rejected("the step recorded as one CUDA graph", why_not)
        step_s = found.called_s or train_plan.step_s  # as it was seen
        return replace(train_plan, rejected=(*train_plan.rejected, rejected), step_s=step_s)
    why = f"its kernels need not wait for the host: recorded as one CUDA graph, {times}"
    why = f"{why}, and {format_bytes(found.held_bytes)}"
    return replace(
        train_plan,
        graph=True,
        step_s=found.replayed_s,
        peak_bytes=train_plan.peak_bytes
        if train_plan.is_tight
        else max(train_plan.peak_bytes, found.held_bytes),
        why=(*train_plan.why, why),
    )


def paged_as_tried(
    job: Job,
    model: nn.Module,
    num_bands: int,
    plan: Plan,
    where: Situation,
    reporter: Reporter,
    effort: Effort | None = None,
) -> Plan | Rejected:
    """Return a plan with the time that its step took here, or why it does not run, if it has room only by pages."""
    if not plan.paged or where.device is None:
        return plan
    found = _recall_or_try(job, model, num_bands, plan, where, reporter, effort or Effort())
    if found.why_not:
        return Rejected("a recorded step, memory by pages", found.why_not)
    why = f"recorded, memory by pages: {format_seconds(found.replayed_s)} seen here"
    return replace(plan, step_s=found.replayed_s, why=(*plan.why, why))


def _is_worth_a_trial(job: Job, plan: Plan, where: Situation) -> bool:
    """Whether a step may be recorded at all, and here."""
    if where.device is None or plan.paged or not may_record(job, where):
        return False
    return plan.is_recordable and (plan.step_s is None or plan.step_s < _LONG_S)


def _recall_or_try(
    job: Job,
    model: nn.Module,
    num_bands: int,
    plan: Plan,
    where: Situation,
    reporter: Reporter,
    effort: Effort,
) -> Recorded:
    """Return what was seen before of the same step on the same device, or try it now, if that is worth its time."""
    from outsize import strategies
    from outsize.measure.remembered import code_of, fingerprint, key_of, recall_or_make, text_of

    section, device = job.train, where.device
    assert device is not None
    names = [text_of(model), section.loss, section.optimizer, str(where.bf16), str(plan.fuse)]
    names += [*code_of(graph_trial, strategies)]
    names += [str(plan.recompute), str(plan.swap), str(plan.limit_bytes) if plan.is_tight else ""]
    names += [str(plan.paged), str(section.batch), str(num_bands), str(section.tile_px), fingerprint(device)]
    # the host's speed decides
    names += [platform.node(), str(os.cpu_count()), str(os.environ.get("PYTORCH_ALLOC_CONF"))]

    def try_now() -> Recorded:
        why_not = why_no_trial(effort, plan.step_s)
        if why_not is not None:
            return replace(cannot_be(f"not tried: {why_not}"), is_passing=True)
        what = "has room by pages" if plan.paged else "is faster"
        reporter.say(
            "recording", f"trying whether the step {what} as one CUDA graph; remembered for the next time"
        )
        trial, left_s = GraphTrial(job, model, num_bands, plan, where.bf16, device), effort.budget.left_s
        with reporter.bar("the step as one CUDA graph", math.ceil(left_s), "s") as bar:
            return try_aside(trial, patience_s=left_s, tick=bar.advance)

    return recall_or_make(f"graph-{key_of(names)}.json", device, read=_read, make=try_now, lasts=_lasts)


def _lasts(found: Recorded) -> bool:
    return not found.is_passing


def _read(tree: Any) -> Recorded | None:
    """Return the trial that a tree is; None, or an error, where it is not sound."""
    from outsize.measure.remembered import is_between

    found = Recorded(**tree)
    numbers = [found.called_s, found.replayed_s, found.held_bytes]
    sound = is_between(0, numbers, _MOST) and isinstance(found.why_not, str)
    return found if sound and (found.why_not or all(numbers)) else None
