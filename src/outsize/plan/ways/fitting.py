"""The plan of a training step within a job's limits, or what would be needed."""

from __future__ import annotations

from contextlib import suppress

from outsize.errors import PlanError, TraceError, explain
from outsize.job import LimitsSection
from outsize.plan.cost import StepCost
from outsize.plan.facts import Facts
from outsize.plan.limits import limit_for, limit_of, usable_share
from outsize.plan.plan import Plan
from outsize.plan.way import StepRequest, Way
from outsize.plan.ways.ladder import choose
from outsize.units import format_bytes, format_count, format_size


def choose_train(
    known: Facts, limits: LimitsSection, task: StepRequest, *, for_more: str | None = None
) -> Plan:
    """Return the plain plan where it fits, else the fastest way that does; or say what would be needed.

    `for_more` says how more memory is to be had where that is not by the job's limit.
    """
    limit_bytes = limit_of(known.machine, limits)
    usable = usable_share(known.machine)
    budget_bytes = usable * limit_bytes
    found = choose(
        task, limit_bytes=limit_bytes, budget_bytes=budget_bytes, approximate=limits.allow_approximate
    )
    if isinstance(found, Plan):
        return found
    least = min((way for way in found if way.inexact is None), key=lambda way: way.peak_bytes)
    if for_more is None:
        for_more = f"limits.{known.machine.limit_key} = {limit_for(least.peak_bytes, usable)}"
    raise PlanError(
        explain(
            f"training {format_count(task.batch, 'window')} of {format_size(task.side_px)} does not fit",
            f"{format_bytes(found[0].peak_bytes)} predicted, and at least {format_bytes(least.peak_bytes)} "
            f"by what is exact ({least.name})",
            f"at most {format_bytes(budget_bytes)} ({usable:.0%} of the limit)",
            f"{_remedy(known, task, found, budget_bytes)}, or {for_more}",
        )
    )


def _remedy(known: Facts, task: StepRequest, found: list[Way], budget_bytes: float) -> str:
    """Say what would fit: a smaller batch, a smaller window, or a way that is not exact."""
    lasting_bytes = known.window.weights_bytes if known.train is None else known.train.weights_bytes
    if lasting_bytes >= budget_bytes:
        return "take a smaller model"  # no window fits beside weights, gradients and optimizer
    one_bytes = (found[0].peak_bytes - lasting_bytes) / task.batch
    fits = _batch_within(task, int((budget_bytes - lasting_bytes) // max(1, one_bytes)), budget_bytes)
    remedy = f"set train.batch = {fits}" if fits else "set a smaller train.tile_px"
    inexact = [way for way in found if way.inexact and way.fits(budget_bytes)]
    if inexact:
        fastest = min(inexact, key=lambda way: way.step_s)
        remedy += f", or limits.allow_approximate = true, which fits by {fastest.name} ({fastest.inexact})"
    return remedy


def _batch_within(task: StepRequest, batch: int, budget_bytes: float) -> int:
    """Return this batch, or a half of it and so on, that fits plainly when it is followed; 0: none does."""
    while batch > 0:
        with suppress(TraceError):  # as of a norm that wants more than one sample
            if StepCost(task.step_of(batch, task.side_px)).peak_bytes() <= budget_bytes:
                return batch
        batch //= 2
    return 0
