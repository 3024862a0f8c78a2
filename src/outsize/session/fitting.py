"""Runs the training loop of a job: the step as planned, batches, validation, log and checkpoints around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import RunError, explain
from outsize.job import Job
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.session.hosting import what_moved
from outsize.session.resuming import Changes, changes_line
from outsize.session.samples import TrainingSamples, batch_maker, open_feed
from outsize.session.saving import Saving
from outsize.session.taken import memory_taken
from outsize.session.validating import log_and_say, validate_with_less

if TYPE_CHECKING:
    from torch import nn

    from outsize.data.sample import Samples
    from outsize.planning.jobs import Prepared
    from outsize.strategies.cudagraph import Recordings
    from outsize.train.feed import Feed
    from outsize.train.log import TrainingLog
    from outsize.train.loop import Position, TrainSettings


def fit_job(
    job: Job,
    prepared: Prepared,
    samples: TrainingSamples,
    state: Any,
    saving: Saving,
    changes: Changes,
    reporter: Reporter,
) -> Position:
    """Run the loop of a job and return where it ended."""
    from outsize.planning.jobs import tightening
    from outsize.strategies.compose import compose
    from outsize.strategies.cudagraph import Recordings
    from outsize.strategies.steps import recovering
    from outsize.strategies.swap import Meter
    from outsize.tasks import task_of
    from outsize.train.loop import Hooks, fit

    task = task_of(job.task)
    recipe = recipe_of(job, samples.windows)
    done = state[1]["total_steps"] if state else 0
    log = _open_log(saving.run, samples, state, changes)
    loss_terms = task.make_loss_terms(job.train.loss, prepared.card.statistics, samples.weights)
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
    make = batch_maker(job, prepared, samples, recipe)
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
            log=partial(log_and_say, task.info, log, bar, reporter),
            copied_s=feed.copied_s,
            **saving.hooks(),
        )
        with _shortage_reported():
            position = fit(prepared.model, step, recipe, hooks, _taken_up(state, feed, prepared.model))
    if position.missed:
        tell(f"train.max_minutes was over before {named_phases(position.missed)} began")
    return position


def _open_log(run: RunFolder, samples: TrainingSamples, state: Any, changes: Changes) -> TrainingLog:
    """Open metrics.jsonl, with what is known of the classes or what changed since the training was interrupted."""
    from outsize.train.log import TrainingLog

    done, num_epochs = (state[1]["total_steps"], state[1]["total_epochs"]) if state else (0, 0)
    log = TrainingLog(run.metrics, run.events, from_step=done, from_epoch=num_epochs)
    if samples.classes and not done:
        log.line({"kind": "classes", "phase": 0, "epoch": 0, "step": 0, **samples.classes})
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


def named_phases(names: Sequence[str]) -> str:
    """Name phases in a line."""
    return f"phase{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


@contextmanager
def _shortage_reported() -> Iterator[None]:
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


def recipe_of(job: Job, windows: Samples) -> TrainSettings:
    """Return what the loop takes of a job: phases, rates, steps, and when to stop."""
    from outsize.tasks import info_of
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
        score=info_of(job.task).score,
        checkpoint_steps=section.checkpoint_steps,
    )
