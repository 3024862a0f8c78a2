"""`outsize train JOB`: statistics, plan, training loop, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.naming import naming
from outsize.commands.plan import say_plan
from outsize.commands.training.hosting import place, what_moved
from outsize.commands.training.lessons import Lessons, batch_maker, open_feed, open_lessons
from outsize.commands.training.resuming import (
    Changes,
    begin,
    changes_line,
    changes_of,
    go_on_with,
    is_finished,
    plan_to_go_on_with,
    refuse_losing_job,
    resumes,
    say_finished,
    wants_another_plan,
)
from outsize.commands.training.saving import Saving
from outsize.commands.training.taken import memory_taken
from outsize.commands.training.validating import log_and_say, validate_with_less
from outsize.errors import RunError, explain
from outsize.files.beside import clear_left
from outsize.files.ownership import Consent
from outsize.job import Job, load_job
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.runs import RunFolder, working_in

if TYPE_CHECKING:
    from torch import nn

    from outsize.data.sampling import TrainingWindows
    from outsize.planning.jobs.preparing import Prepared
    from outsize.strategies.cudagraph import Recordings
    from outsize.train.feed import Feed
    from outsize.train.log import TrainingLog
    from outsize.train.loop import Position, TrainSettings


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
    from outsize.planning.jobs.preparing import prepare
    from outsize.tasks import told_of
    from outsize.train.checkpoint import load_state
    from outsize.train.feed import get_processes_ready

    resuming = resumes(run, job, mode)
    changes = changes_of(run, job) if resuming else {}
    if pick_device(device_name).type == "cuda":
        get_processes_ready()
    with naming(job_path):
        prepared = prepare(job, device_name, reporter, starting=not resuming)
        lessons = open_lessons(job, prepared, reporter)
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
        run, prepared, SampleCounts([each.name for each in prepared.card.classes]), told_of(job.task).score
    )
    with (
        closing(lessons.windows),
        watching(prepared.device) as usage,
        saving.told(job_path, overrides, job.train.lr),
    ):
        position = _fit(job, prepared, lessons, state, saving, changes, reporter)
        num_steps = position.total_steps - (state[1]["total_steps"] if state else 0)
        summary = usage.summary(num_steps * job.train.batch, images_at_once=job.train.batch)
    write_usage(run.path, "train", summary)
    _sum_up(job, run, position, reporter)


def _sum_up(job: Job, run: RunFolder, position: Position, reporter: Reporter) -> None:
    from outsize.report.sections.split import split_of_run
    from outsize.tasks import told_of

    split = split_of_run(run.metrics)
    if split is not None:
        reporter.say("times", split.line(), **split.as_dict())
    early = " (stopped early)" if position.stopped else ""
    without = f", without {_phases(position.missed)}" if position.missed else ""
    score = f"best {told_of(job.task).score_name} {position.best_score:.4f}"
    text = f"trained {position.total_steps} steps{early}{without}, {score}: {run.best}"
    told = {"steps": position.total_steps, "best": position.best_score, "missed": list(position.missed)}
    reporter.say("trained", text, **told, run=str(run.path))


def _fit(
    job: Job,
    prepared: Prepared,
    lessons: Lessons,
    state: Any,
    saving: Saving,
    changes: Changes,
    reporter: Reporter,
) -> Position:
    from outsize.planning.jobs.shortage import tightening
    from outsize.strategies.compose import compose
    from outsize.strategies.cudagraph import Recordings
    from outsize.strategies.steps import recovering
    from outsize.strategies.swap import Meter
    from outsize.tasks import task_of
    from outsize.train.loop import Hooks, fit

    task = task_of(job.task)
    recipe = _recipe(job, lessons.windows)
    done = state[1]["total_steps"] if state else 0
    log = _open_log(saving.run, lessons, state, changes)
    loss_terms = task.make_loss_terms(job.train.loss, prepared.card.statistics, lessons.weights)
    tell, meter, recordings = partial(_tell, log=log, reporter=reporter), Meter(), Recordings()
    composed = partial(compose, prepared.model, loss_terms, bf16=prepared.where.bf16)
    make_step = partial(composed, tell=tell, meter=meter, recordings=recordings)

    def changed(plan: Plan, why: str) -> None:
        nonlocal prepared
        prepared = prepared.with_plan(plan)
        recordings.let_go()
        tell(why)
        prepared.record(saving.run)  # a resumed training goes on with its steps

    tighten = tightening(job, prepared, make_step, changed)
    forget = partial(_forget, recordings, prepared.model)
    step = recovering(make_step(prepared.train_plan), prepared.model, tighten, forget)
    make = batch_maker(job, prepared, lessons, recipe)
    feed = open_feed(job, prepared, make, saving.seen, recipe, reporter)
    taken = memory_taken(prepared.device, lambda: prepared.train_plan, reporter)
    with closing(feed), reporter.bar("train", recipe.num_epochs * recipe.steps_per_epoch, "step") as bar:
        bar.advance(done)
        hooks = Hooks(
            batches=feed.batches,
            validate=lambda model: {
                **taken(),  # before a validation, which takes memory of its own
                **_validated(job, prepared, model, recordings, changed, saving.run.path),
                "mix": saving.seen.as_dict(),
                **what_moved(meter, reporter),
            },
            log=partial(log_and_say, task.told, log, bar, reporter),
            copied_s=feed.copied_s,
            **saving.hooks(),
        )
        with _shortage_told():
            position = fit(prepared.model, step, recipe, hooks, _taken_up(state, feed, prepared.model))
    if position.missed:
        tell(f"train.max_minutes was over before {_phases(position.missed)} began")
    return position


def _open_log(run: RunFolder, lessons: Lessons, state: Any, changes: Changes) -> TrainingLog:
    """Open metrics.jsonl, with what is known of the classes or what changed since the training was interrupted."""
    from outsize.train.log import TrainingLog

    done, num_epochs = (state[1]["total_steps"], state[1]["total_epochs"]) if state else (0, 0)
    log = TrainingLog(run.metrics, run.events, from_step=done, from_epoch=num_epochs)
    if lessons.classes and not done:
        log.line({"kind": "classes", "phase": 0, "epoch": 0, "step": 0, **lessons.classes})
    if changes:
        log.line(changes_line(changes, state[1]))
    return log


def _taken_up(state: Any, feed: Feed, model: nn.Module) -> Any:
    """Let the feed go on where a saved training stood, and return what the loop goes on with; None begins anew."""
    from outsize.strategies.offload import as_held

    if state is None:
        return None
    tensors, where = state
    # what was seen of the epoch is the feed's; states of before lack it
    seen = where.pop("seen", None)
    feed.take_up(where["total_epochs"], where["step"], seen)
    return as_held(model, tensors), where


def _forget(recordings: Recordings, model: nn.Module) -> None:
    """Let go of what a step that failed has left in others' hands."""
    from outsize.strategies.offload import begin_anew

    recordings.let_go()
    begin_anew(model)


def _validated(
    job: Job,
    prepared: Prepared,
    model: nn.Module,
    recordings: Recordings,
    changed: Callable[[Plan, str], None],
    folder: Path,
) -> Mapping[str, Any]:
    """Score the model; what a recorded step keeps is let go first where memory is scarce."""
    from outsize.tasks import task_of

    if prepared.train_plan.is_tight:
        recordings.let_go()
    return validate_with_less(task_of(job.task), prepared, model, changed, folder)


def _phases(names: Sequence[str]) -> str:
    return f"phase{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


@contextmanager
def _shortage_told() -> Iterator[None]:
    """Say in one line that memory ran out in the optimizer or in validation; steps help themselves."""
    from outsize.measure.memory import ran_out

    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        found, need = (
            str(error).partition(". ")[0],
            "memory for the optimizer and for validation besides steps",
        )
        remedy = "free memory on the device or set limits.gpu_memory lower, and continue with --resume"
        raise RunError(explain("memory ran out between two steps", found, need, remedy)) from error


def _tell(text: str, log: TrainingLog, reporter: Reporter) -> None:
    """Warn that plan or job could not be carried out as they are, and leave that in the run."""
    reporter.say("warning", f"warning: {text}")
    log.line({"kind": "plan", "phase": 0, "epoch": 0, "step": 0, "warning": text})


def _recipe(job: Job, windows: TrainingWindows) -> TrainSettings:
    from outsize.tasks import told_of
    from outsize.train.loop import TrainSettings
    from outsize.train.phases import LrSchedule, TrainPhase

    section = job.train
    num_samples = section.samples_per_epoch or windows.samples_per_cover
    return TrainSettings(
        phases=[
            TrainPhase(
                phase.name,
                phase.epochs or section.epochs,
                phase.lr or section.lr,
                phase.trainable,
                phase.output,
            )
            for phase in section.all_phases()
        ],
        schedule=LrSchedule(
            section.schedule, section.warmup_steps, section.power, section.step_epochs, section.step_factor
        ),
        optimizer=section.optimizer,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        steps_per_epoch=max(1, num_samples // section.batch),
        seed=job.seed,
        early_stop_epochs=section.early_stop_epochs,
        max_s=None if section.max_minutes is None else 60 * section.max_minutes,
        score=told_of(job.task).score,
        checkpoint_steps=section.checkpoint_steps,
    )
