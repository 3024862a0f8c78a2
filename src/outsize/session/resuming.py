"""What `train` does about an earlier training in its run: refuse it, go on with it, or clear it away."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import OutputError, RunError, explain, listed
from outsize.job import Job, dump_job, load_job
from outsize.plan.plan import Plan
from outsize.planning.planned import read_train_plan
from outsize.progress import Reporter
from outsize.ranks import World
from outsize.runs import RunFolder, open_run, output_errors, write_text
from outsize.session.hosting import host_has_room
from outsize.session.staging import ranks_of_model
from outsize.units import format_count

if TYPE_CHECKING:
    from outsize.planning.jobs import Prepared

_FIXED = ("data", "model", "train", "seed")  # what decides how a training goes on
# but for these: what was saved fits all of them, and none decides which samples come next or how many steps there are
_SCHEDULE = ("schedule", "warmup_steps", "power", "step_epochs", "step_factor")
_RATES = ("lr", "lr_for_batch", "lr_rule", "momentum", "weight_decay", *_SCHEDULE)
_WAYS = ("precision", "fuse", "graph", "compile")  # to run a step, by a plan of their own
_HABITS = ("early_stop_epochs", "checkpoint_steps", "workers", "mlflow")
_FREE = re.compile(rf"train\.({'|'.join((*_RATES, *_WAYS, *_HABITS))}|phases\.\d+\.lr)")
_MAX_CHARS = 40  # of a value that is shown

Changes = Mapping[str, tuple[Any, Any]]  # by key: the value before, and the one from now on


def resumes(run: RunFolder, job: Job, mode: str) -> bool:
    """Say whether to resume; refuse to mix a new training with an old one, or to lose the weights of one."""
    if mode == "resume" and run.state.exists():
        changed = [
            _change(key, *values) for key, values in changes_of(run, job).items() if not _FREE.fullmatch(key)
        ]
        if changed:
            need = "the job it was started with, but for its rates, precision, workers and checkpoints"
            remedy = "undo the change, or train with --overwrite"
            raise RunError(explain(f"run {run.path} cannot be resumed", listed(changed), need, remedy))
        return True
    if run.state.exists() and mode == "new":
        remedy = "continue with --resume, start again with --overwrite, or set another `run` in the job"
        raise RunError(explain(f"run {run.path} exists", "a training in it", "an empty folder", remedy))
    if run.is_trained and mode != "overwrite":
        found = f"weights of a training ({run.best.name}), and no {run.state.name} to continue from"
        remedy = (
            f"start another run from these weights (--set train.init={run.path.as_posix()} --set run="
            f"{run.path.as_posix()}-2), or add --overwrite to start over and lose them"
        )
        raise RunError(explain(f"run {run.path} exists", found, "an empty folder", remedy))
    return False


def refuse_losing_job(run: RunFolder, job_path: Path) -> None:
    """Refuse a run whose copy of the job would take the place of the job itself, comments and all."""
    try:
        is_same = run.job.samefile(job_path)
    except OSError:
        return
    # the copy that a run keeps, given as a job, is written as it is
    if is_same and job_path.read_text(encoding="utf-8") != dump_job(load_job(job_path)):
        found = f"run = {str(run.path)!r}, the folder of the job itself"
        need, remedy = "a folder of its own", "set another `run` (--set run=runs/NAME)"
        raise OutputError(explain(f"the run would overwrite its job {job_path}", found, need, remedy))


def changes_of(run: RunFolder, job: Job) -> Changes:
    """Return by which keys a job differs from the one that a training began, or last went on, with."""
    return _differing(load_job(open_run(run.path).job), job)


def go_on_with(run: RunFolder, job: Job, changes: Changes, step: int, reporter: Reporter) -> None:
    """Write down in the run, and say, what is another from a step on."""
    if not changes:
        return
    write_text(run.job, dump_job(job))
    summary = listed([_change(key, *values) for key, values in changes.items()], len(changes))
    reporter.say("changes", f"from step {step:,} on, {summary}", step=step, changes=_plain(changes))


def changes_line(changes: Changes, position: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of metrics that tells of changes."""
    where = {"phase": position["phase"], "epoch": position["total_epochs"], "step": position["total_steps"]}
    return {"kind": "changes", **where, "changes": _plain(changes)}


def _plain(changes: Changes) -> dict[str, dict[str, Any]]:
    return {key: {"before": old, "now": new} for key, (old, new) in changes.items()}


def wants_another_plan(changes: Changes) -> bool:
    """Say whether a step is to be run another way than before."""
    return any(f"train.{each}" in changes for each in _WAYS)


def _differing(before: Job, now: Job) -> Changes:
    old, new = (_flat(job.model_dump(mode="json", include=set(_FIXED))) for job in (before, now))
    return {key: (old.get(key), new.get(key)) for key in {**new, **old} if old.get(key) != new.get(key)}


def _flat(tree: Mapping[Any, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{before}{key}"
        # of the phases each has a rate of its own
        inner = dict(enumerate(value)) if name == "train.phases" else value
        found.update(_flat(inner, f"{name}.") if isinstance(inner, Mapping) else {name: value})
    return found


def _change(key: str, old: object, new: object) -> str:
    """Say what a key is now instead of before."""
    ours, theirs = ("nothing" if value is None else repr(value) for value in (new, old))
    is_short = max(len(ours), len(theirs)) <= _MAX_CHARS
    return f"{key} = {ours} instead of {theirs}" if is_short else f"another {key}"


def is_finished(job: Job, position: Mapping[str, Any]) -> bool:
    """Say whether a saved training has nothing left to do: its epochs are over, or its minutes, or it stopped early."""
    phases = job.train.all_phases()
    max_minutes = job.train.max_minutes
    if position["step"]:
        return False  # an epoch that nobody has scored yet
    if max_minutes is not None and position["spent_s"] >= 60 * max_minutes:
        return True
    if position["phase"] < len(phases) - 1:
        return False
    return bool(position["stopped"]) or position["epoch"] >= (phases[-1].epochs or job.train.epochs)


def say_finished(run: RunFolder, position: Mapping[str, Any], reporter: Reporter) -> None:
    """Say that there is nothing to resume, and how to train further."""
    steps, best = position["total_steps"], position["best_score"]
    name = run.path.as_posix()
    text = (
        f"{run.path} is finished after {format_count(steps, 'step')}, and nothing was trained. "
        f"To train further, start another run from its weights: --set train.init={name} --set run={name}-2. "
        "To train longer from the beginning, set train.epochs (or train.max_minutes) and add --overwrite"
    )
    reporter.say("finished", text, steps=steps, best=best, run=str(run.path))


def plan_to_go_on_with(run: RunFolder, prepared: Prepared, job: Job, reporter: Reporter) -> Plan:
    """Return the plan that the training began with, for another might round otherwise; a new one if it cannot be."""
    before = read_train_plan(run)
    why = _why_not(before, prepared, job)
    if why is None:
        return before
    text = (
        f"warning: the plan that this training began with {why}; it continues by another, with other rounding"
    )
    reporter.say("warning", text)
    return prepared.train_plan


def _why_not(plan: Plan, prepared: Prepared, job: Job) -> str | None:
    """Say what keeps a plan of an earlier day from being carried out here, if anything does."""
    from outsize.plan.limits import usable_bytes
    from outsize.strategies.cudagraph import why_not_paged
    from outsize.strategies.kernels import fusing

    if plan.spatial != prepared.train_plan.spatial:
        return "lays pictures on other ranks"
    if _has_fewer_parts(plan, prepared.where.num_gpus, job.train.batch):
        return f"has {plan.micro_batches} micro-batches, in which not every rank would have a sample"
    if plan.replicate != prepared.train_plan.replicate:
        return "has the optimizer's state in other shards"
    before, now = ranks_of_model(plan), ranks_of_model(prepared.train_plan)
    if before != now:
        return f"has {format_count(before, 'stage')}, and not {now}"
    if plan.fuse is not None and not fusing(prepared.device.type):
        return "fuses layers, which Triton cannot build here (plain ones take longer and keep more)"
    if plan.paged:
        why_not = why_not_paged()
        if why_not is not None:
            return f"has its memory by pages, which cannot be here ({why_not})"
        return (
            None
            if host_has_room(plan, job.limits, prepared.where.num_local)
            and _fits_by_pages(plan, prepared, job)
            else "no longer fits"
        )
    fits = plan.peak_bytes <= usable_bytes(prepared.facts.machine, job.limits)
    return None if fits and host_has_room(plan, job.limits, prepared.where.num_local) else "no longer fits"


def _has_fewer_parts(plan: Plan, num_ranks: int, batch: int) -> bool:
    """Say whether micro-batches are too small for so many ranks, which would then take fewer, other ones."""
    from outsize.strategies.replicate import share_out

    if plan.micro_batches is None or plan.pipeline is not None:
        return False
    each = 1 if plan.spatial is None else plan.spatial.num
    here, alone = (share_out(World(size=num), batch, plan.micro_batches) for num in (num_ranks // each, 1))
    return len(here.sizes[0]) < len(alone.sizes[0])


def _fits_by_pages(plan: Plan, prepared: Prepared, job: Job) -> bool:
    from outsize.plan.limits import limit_of
    from outsize.plan.ways import paged_room_bytes

    return plan.peak_bytes <= paged_room_bytes(limit_of(prepared.facts.machine, job.limits))


def has_begun(run: RunFolder, since_s: float) -> bool:
    """Say whether a training has begun in a run since a moment: what is saved there is then its own."""
    try:
        return run.job.stat().st_mtime >= since_s
    except FileNotFoundError:
        return False


def launched_s() -> float:
    """Return when the process began that has started this one: of torchrun's ranks its agent."""
    import psutil

    return float(psutil.Process(os.getppid()).create_time())


def with_resume(words: Sequence[str]) -> list[str]:
    """Return a command line that goes on from what is saved."""
    return [each for each in words if each not in ("--overwrite", "--resume")] + ["--resume"]


def begin(run: RunFolder, job: Job) -> None:
    """Clear away an earlier training and what was said of its weights; only now, when nothing stands in the way.

    Maps stay until they are predicted again, but without their ledger they are not taken for those of the new weights.
    """
    from outsize.infer.ledger import LEDGER
    from outsize.tasks import info_of
    from outsize.train.checkpoint import earlier

    cards = (run.best.with_suffix(".json"), run.last.with_suffix(".json"))
    summary = (run.scores, run.verify, run.path / info_of(job.task).comparison, run.predictions / LEDGER)
    events = run.events.glob("events.out.tfevents.*.outsize")
    for old in (
        run.state,
        earlier(run.state),
        run.metrics,
        run.best,
        run.last,
        run.init,
        *cards,
        *summary,
        *events,
    ):
        with output_errors(old):
            old.unlink(missing_ok=True)
    write_text(run.job, dump_job(job))
