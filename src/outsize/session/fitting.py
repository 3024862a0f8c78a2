"""Runs the training loop of a job: the step as planned, batches, validation, log and checkpoints around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import RunError, explain
from outsize.job import Job
from outsize.progress import Reporter
from outsize.ranks import ALONE, World
from outsize.runs import RunFolder
from outsize.session.hosting import what_moved
from outsize.session.pace import StepPace
from outsize.session.resuming import Changes, changes_line
from outsize.session.samples import TrainingSamples, batch_maker, open_feed
from outsize.session.saving import Saving
from outsize.session.staging import ranks_of_model
from outsize.session.stepping import Stepping
from outsize.session.taken import memory_taken
from outsize.session.validating import log_and_say, validate_with_less

if TYPE_CHECKING:
    from torch import nn

    from outsize.data.batch import Batch
    from outsize.data.sample import Samples
    from outsize.planning.jobs import Prepared
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
    world: World = ALONE,
) -> Position:
    """Run the loop of a job, in step with all ranks, and return where it ended."""
    from outsize.strategies.swap import Meter
    from outsize.tasks import task_of
    from outsize.train.loop import Hooks, fit

    task = task_of(job.task)
    recipe = recipe_of(job, samples.windows)
    done = state[1]["total_steps"] if state else 0
    log = _open_log(job, saving.run, samples, state, changes) if world.is_owner else None
    tell, meter = partial(_tell, log=log, reporter=reporter), Meter()
    steps = Stepping(job, prepared, saving.run, world, tell)
    loss_terms = task.make_loss_terms(job.train.loss, prepared.card.statistics, samples.weights)
    step = steps.composed(loss_terms, meter)
    make = batch_maker(job, prepared, samples, recipe, steps.numbers, steps.tile)
    feed = open_feed(job, prepared, make, saving.seen, recipe, reporter).among(
        world, ranks_of_model(prepared.train_plan)
    )
    taken = memory_taken(prepared.device, lambda: steps.prepared.train_plan, reporter)

    def score(model: nn.Module) -> Mapping[str, Any]:
        with reporter.doing("validate"):
            return {
                **taken(),  # before a validation, which takes memory of its own
                **_validated(job, steps, model, saving.run.path),
                "mix": saving.seen.as_dict(),
                **what_moved(meter, reporter),
            }

    num_steps = recipe.num_epochs * recipe.steps_per_epoch
    with closing(feed), reporter.bar("train", num_steps, "step", parallel=world.size, panel=True) as bar:
        bar.advance(done)
        hooks = Hooks(
            batches=partial(_batches, world, feed),
            validate=partial(_among_ranks, world, saving, score),
            log=_ignore
            if log is None
            else partial(log_and_say, task.info, log, bar, reporter, StepPace(job.train.batch)),
            copied_s=feed.copied_s,
            stops=feed.stops,
            kept_of=saving.held.kept_of,
            world=world,
            **{name: reporter.doing("save")(hook) for name, hook in saving.hooks().items()},
        )
        with _shortage_reported():
            position = fit(prepared.model, step, recipe, hooks, _taken_up(state, feed, prepared.model))
    if position.missed:
        tell(f"train.max_minutes was over before {named_phases(position.missed)} began")
    return position


def _open_log(
    job: Job, run: RunFolder, samples: TrainingSamples, state: Any, changes: Changes
) -> TrainingLog:
    """Open metrics.jsonl, with what is known of the classes or what changed since the training was interrupted."""
    from outsize.train.log import TrainingLog
    from outsize.train.mlflow_tracker import MlflowTracker, params_of

    done, num_epochs = (state[1]["total_steps"], state[1]["total_epochs"]) if state else (0, 0)
    also = []
    if job.train.mlflow is not None:
        also.append(MlflowTracker(job.train.mlflow, run.path, params_of(job), goes_on=bool(done)))
    log = TrainingLog(run.metrics, run.events, from_step=done, from_epoch=num_epochs, also=also)
    if samples.classes and not done:
        log.line({"kind": "classes", "phase": 0, "epoch": 0, "step": 0, **samples.classes})
    if changes:
        log.line(changes_line(changes, state[1]))
    return log


def _taken_up(state: Any, feed: Feed, model: nn.Module) -> Any:
    """Let the feed go on where a saved training stood, and return what the loop goes on with; None starts over."""
    from outsize.strategies.offload import as_held

    if state is None:
        return None
    tensors, where = state
    # what was seen of the epoch is the feed's; states of before lack it
    seen = where.pop("seen", None)
    feed.take_up(where["total_epochs"], where["step"], seen)
    return as_held(model, tensors), where


def _validated(job: Job, steps: Stepping, model: nn.Module, folder: Path) -> Mapping[str, Any]:
    """Score the model; what a recorded step keeps is let go first where memory is scarce."""
    from outsize.tasks import task_of

    if steps.prepared.train_plan.is_tight:
        steps.recordings.let_go()
    return validate_with_less(task_of(job.task), steps.prepared, model, steps.changed, folder)


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


def _among_ranks(
    world: World, saving: Saving, score: Callable[[nn.Module], Mapping[str, Any]], model: nn.Module
) -> Mapping[str, Any]:
    """Score a model: the owner does, and all hear of it."""
    world.at("validation")
    saving.even_out()
    with saving.held.whole(saving.device):
        return world.owners(lambda: score(model))


def _batches(world: World, feed: Feed, epoch: int, first_step: int) -> Iterator[Batch]:
    """Yield an epoch's batches, as the phase of a rank that others name where it is lost."""
    world.at(f"epoch {epoch + 1}")
    return feed.batches(epoch, first_step)


def _ignore(_: Mapping[str, Any]) -> None:
    """Log nothing: the owner does."""


def _tell(text: str, log: TrainingLog | None, reporter: Reporter) -> None:
    """Warn that plan or job could not be carried out as they are, and leave that in the run."""
    if log is None:
        return
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
