"""`outsize train JOB`: statistics, plan, training loop, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.commands.plan import say_plan
from outsize.files.beside import clear_left
from outsize.files.ownership import Consent
from outsize.job import Job, load_job
from outsize.job.naming import naming
from outsize.progress import Reporter
from outsize.runs import RunFolder, working_in
from outsize.session.fitting import fit_job, named_phases
from outsize.session.hosting import place
from outsize.session.resuming import (
    begin,
    changes_of,
    go_on_with,
    is_finished,
    plan_to_go_on_with,
    refuse_losing_job,
    resumes,
    say_finished,
    wants_another_plan,
)
from outsize.session.samples import open_samples
from outsize.session.saving import Saving

if TYPE_CHECKING:
    from outsize.train.loop import Position


def train(
    job_path: Path,
    *,
    overrides: Sequence[str],
    device_name: str,
    mode: str,
    reporter: Reporter,
    take_over: bool = False,
) -> RunFolder:
    """Train as a job says; `mode` is "new", "resume" or "overwrite".

    `take_over`: also where a process on another host, which is over, left the run locked.
    """
    job = load_job(job_path, overrides)
    run = RunFolder(Path(job.run))
    refuse_losing_job(run, job_path)
    consent = Consent(overwrite=mode == "overwrite", take_over=take_over)
    with working_in(run, "train", consent, tell=lambda text: reporter.say("lock", text)):
        clear_left(run.best.parent, is_alone=True)
        _train(job, run, job_path, overrides, device_name, mode, reporter)
    return run


def _train(
    job: Job,
    run: RunFolder,
    job_path: Path,
    overrides: Sequence[str],
    device_name: str,
    mode: str,
    reporter: Reporter,
) -> None:
    from outsize.data.sampling import SampleCounts
    from outsize.measure.machine import pick_device
    from outsize.measure.usage import watching, write_usage
    from outsize.planning.jobs import prepare
    from outsize.tasks import info_of
    from outsize.train.checkpoint import load_state
    from outsize.train.feed import get_processes_ready

    resuming = resumes(run, job, mode)
    changes = changes_of(run, job) if resuming else {}
    if pick_device(device_name).type == "cuda":
        get_processes_ready()
    with naming(job_path):
        prepared = prepare(job, device_name, reporter, starting=not resuming)
        samples = open_samples(job, prepared, reporter)
    if resuming and not wants_another_plan(changes):
        prepared = replace(prepared, train_plan=plan_to_go_on_with(run, prepared, job, reporter))
    state = load_state(run.state, prepared.model) if resuming else None
    if state is None:
        begin(run, job)
    prepared.record(run)
    if state is not None and is_finished(job, state[1]):
        say_finished(run, state[1], reporter)
        return
    for plan in (prepared.train_plan, prepared.predict_plan):
        say_plan(plan, reporter)
    if not prepared.splits.val:
        text = "warning: nothing is held back for validation: epochs are scored on the training scenes"
        reporter.say("warning", text)
    if mode == "resume" and state is None:
        reporter.say("resume", "nothing to resume yet: starting from the beginning", step=0)
    if state is not None:
        step = state[1]["total_steps"]
        reporter.say("resume", f"resuming at step {step}", step=step)
        go_on_with(run, job, changes, step, reporter)
    place(prepared.model, prepared.train_plan, prepared.device, bf16=prepared.where.bf16)
    saving = Saving(
        run, prepared, SampleCounts([each.name for each in prepared.card.classes]), info_of(job.task).score
    )
    with (
        closing(samples.windows),
        watching(prepared.device) as usage,
        saving.reporting(job_path, overrides, job.train.lr),
    ):
        position = fit_job(job, prepared, samples, state, saving, changes, reporter)
        num_steps = position.total_steps - (state[1]["total_steps"] if state else 0)
        summary = usage.summary(num_steps * job.train.batch, images_at_once=job.train.batch)
    write_usage(run.path, "train", summary)
    _sum_up(job, run, position, reporter)


def _sum_up(job: Job, run: RunFolder, position: Position, reporter: Reporter) -> None:
    from outsize.report.split import split_of_run
    from outsize.tasks import info_of

    split = split_of_run(run.metrics)
    if split is not None:
        reporter.say("times", split.line(), **split.as_dict())
    early = " (stopped early)" if position.stopped else ""
    without = f", without {named_phases(position.missed)}" if position.missed else ""
    score = f"best {info_of(job.task).score_name} {position.best_score:.4f}"
    text = f"trained {position.total_steps} steps{early}{without}, {score}: {run.best}"
    figures = {"steps": position.total_steps, "best": position.best_score, "missed": list(position.missed)}
    reporter.say("trained", text, **figures, run=str(run.path))
