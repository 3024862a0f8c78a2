"""What `train` does about an earlier training in its run: refuse it, go on with it, or clear it away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outsize.commands.hosting import host_has_room
from outsize.commands.planned import read_train_plan
from outsize.errors import RunError, explain
from outsize.job import Job, dump_job, load_job
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, output_errors, write_text

if TYPE_CHECKING:
    from outsize.commands.preparing import Prepared


def resumes(run: RunFolder, job: Job, mode: str) -> bool:
    """Say whether to resume; refuse to mix a new training with an old one."""
    if mode == "resume" and run.state.exists():
        before = load_job(open_run(run.path).job)
        changed = [
            part for part in ("data", "model", "train", "seed") if getattr(before, part) != getattr(job, part)
        ]
        if changed:
            need, remedy = "the job it was started with", "undo the change, or train with --overwrite"
            raise RunError(
                explain(f"run {run.path} cannot be resumed", f"another {changed[0]}", need, remedy)
            )
        return True
    if run.state.exists() and mode == "new":
        remedy = "continue with --resume, start anew with --overwrite, or set another `run` in the job"
        raise RunError(explain(f"run {run.path} exists", "a training in it", "an empty folder", remedy))
    return False


def plan_to_go_on_with(run: RunFolder, prepared: Prepared, job: Job, reporter: Reporter) -> Plan:
    """Return the plan that the training began with, for another might round otherwise; a new one if it cannot be."""
    before = read_train_plan(run)
    why = _why_not(before, prepared, job)
    if why is None:
        return before
    text = f"warning: the plan that this training began with {why}; another goes on, and may round otherwise"
    reporter.say("warning", text)
    return prepared.train_plan


def _why_not(plan: Plan, prepared: Prepared, job: Job) -> str | None:
    """Say what keeps a plan of an earlier day from being carried out here, if anything does."""
    from outsize.plan.choose import usable_bytes
    from outsize.strategies import paged
    from outsize.strategies.fused import fusing

    if plan.fuse is not None and not fusing(prepared.device.type):
        return "fuses layers, which Triton cannot build here (plain ones take longer and keep more)"
    if plan.paged:
        why_not = paged.why_not()
        if why_not is not None:
            return f"has its memory by pages, which cannot be here ({why_not})"
        return (
            None
            if host_has_room(plan, job.limits) and _fits_by_pages(plan, prepared, job)
            else "no longer fits"
        )
    fits = plan.peak_bytes <= usable_bytes(prepared.facts.machine, job.limits)
    return None if fits and host_has_room(plan, job.limits) else "no longer fits"


def _fits_by_pages(plan: Plan, prepared: Prepared, job: Job) -> bool:
    from outsize.plan.choose import limit_of
    from outsize.plan.paging import paged_room_bytes

    return plan.peak_bytes <= paged_room_bytes(limit_of(prepared.facts.machine, job.limits))


def begin(run: RunFolder, job: Job) -> None:
    """Clear away an earlier training and what was said of its weights; only now, when nothing stands in the way.

    Maps stay until they are predicted anew, but without their ledger they are not taken for those of the new weights.
    """
    from outsize.infer.ledger import LEDGER

    cards = (run.best.with_suffix(".json"), run.last.with_suffix(".json"))
    told = (run.scores, run.verify, run.comparison, run.predictions / LEDGER)
    events = run.events.glob("events.out.tfevents.*.outsize")
    for old in (run.state, run.metrics, run.best, run.last, run.init, *cards, *told, *events):
        with output_errors(old):
            old.unlink(missing_ok=True)
    write_text(run.job, dump_job(job))
