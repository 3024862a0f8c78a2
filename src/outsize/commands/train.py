"""`outsize train JOB`: statistics, plan, training loop, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.commands.hosting import host_has_room, place, room_for_pictures, what_moved
from outsize.commands.naming import naming
from outsize.commands.plan import say_plan
from outsize.commands.validating import log_and_say, validate
from outsize.errors import JobError, RunError, explain
from outsize.job import Job, dump_job, load_job
from outsize.plan.plan import Plan, plan_from_dict
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, output_errors, read_json, write_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from outsize.commands.preparing import Prepared
    from outsize.data.sampling import Seen
    from outsize.data.windows import TrainingWindows
    from outsize.losses import Weights, WeightsByStride
    from outsize.strategies.step import Step
    from outsize.train.feed import BatchMaker, Feed
    from outsize.train.log import TrainingLog
    from outsize.train.loop import Position, Recipe


def train(
    job_path: Path, *, overrides: Sequence[str], device_name: str, mode: str, reporter: Reporter
) -> RunFolder:
    """Train as a job says; `mode` is "new", "resume" or "overwrite"."""
    from outsize.commands.preparing import prepare
    from outsize.measure.machine import pick_device
    from outsize.measure.usage import watching, write_usage
    from outsize.report.split import split_of_run
    from outsize.tasks import TASKS
    from outsize.train.checkpoint import load_state
    from outsize.train.feed import get_processes_ready

    job = load_job(job_path, overrides)
    run = RunFolder(Path(job.run))
    resuming = _resumes(run, job, mode)
    if pick_device(device_name).type == "cuda":
        get_processes_ready()
    with naming(job_path):
        prepared = prepare(job, device_name, reporter, starting=not resuming)
        lessons = _open_lessons(job, prepared, reporter)
    if resuming:
        prepared = replace(prepared, train_plan=_plan_to_go_on_with(run, prepared, job, reporter))
    state = load_state(run.state, prepared.model) if resuming else None
    if state is None:
        _begin(run, job)
    prepared.record(run)
    for plan in (prepared.train_plan, prepared.predict_plan):
        say_plan(plan, reporter)
    if not prepared.splits.val:
        text = "warning: nothing is held back for validation: the scores of epochs are those of the training scenes"
        reporter.say("warning", text)
    if mode == "resume" and state is None:
        reporter.say("resume", "nothing to resume yet: beginning anew", step=0)
    if state is not None:
        reporter.say("resume", f"resuming at step {state[1]['total_steps']}", step=state[1]["total_steps"])
    place(prepared.model, prepared.train_plan, prepared.device, bf16=prepared.where.bf16)
    with closing(lessons.windows), watching(prepared.device) as usage:
        position = _fit(job, run, prepared, lessons, state, reporter)
        num_steps = position.total_steps - (state[1]["total_steps"] if state else 0)
        summary = usage.summary(num_steps * job.train.batch, images_at_once=job.train.batch)
    write_usage(run.path, "train", summary)
    split = split_of_run(run.metrics)
    if split is not None:
        reporter.say("times", split.line(), **split.as_dict())
    early = " (stopped early)" if position.stopped else ""
    score = f"best {TASKS[job.task].score_name} {position.best_score:.4f}"
    text = f"trained {position.total_steps} steps{early}, {score}: {run.best}"
    reporter.say("trained", text, steps=position.total_steps, best=position.best_score, run=str(run.path))
    return run


def _resumes(run: RunFolder, job: Job, mode: str) -> bool:
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


def _plan_to_go_on_with(run: RunFolder, prepared: Prepared, job: Job, reporter: Reporter) -> Plan:
    """Return the plan that the training began with, for another might round otherwise; a new one if it does not fit."""
    from outsize.plan.choose import usable_bytes

    before = plan_from_dict(read_json(run.plan, "plan")["train"])
    fits = before.peak_bytes <= usable_bytes(prepared.facts.machine, job.limits)
    if fits and host_has_room(before, job.limits):
        return before
    text = "warning: the plan that this training began with no longer fits; another goes on, and may round otherwise"
    reporter.say("warning", text)
    return prepared.train_plan


def _begin(run: RunFolder, job: Job) -> None:
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


def _fit(
    job: Job, run: RunFolder, prepared: Prepared, lessons: _Lessons, state: Any, reporter: Reporter
) -> Position:
    from outsize.commands.shortage import tightening
    from outsize.data.sampling import Seen
    from outsize.strategies.compose import compose
    from outsize.strategies.offload import as_held, in_full
    from outsize.strategies.recover import recovering
    from outsize.strategies.traffic import Meter
    from outsize.tasks import TASKS
    from outsize.train.checkpoint import save_state
    from outsize.train.log import TrainingLog
    from outsize.train.loop import Hooks, fit

    task = TASKS[job.task]
    recipe = _recipe(job, lessons.windows)
    done = state[1]["total_steps"] if state else 0
    log = TrainingLog(run.metrics, run.events, from_step=done)
    loss_terms = task.make_loss_terms(job.train.loss, prepared.card.statistics, lessons.weights)
    tell = partial(_tell, log=log, reporter=reporter)
    meter = Meter()

    def make_step(plan: Plan) -> Step:
        return compose(prepared.model, loss_terms, plan, bf16=prepared.where.bf16, tell=tell, meter=meter)

    def changed(plan: Plan, why: str) -> None:
        tell(why)
        replace(prepared, train_plan=plan).record(run)  # a resumed training goes on with it

    tighten = tightening(job, prepared, make_step, changed)
    step = recovering(make_step(prepared.train_plan), prepared.model, tighten)
    if lessons.classes and not done:
        log.line({"kind": "classes", "phase": 0, "epoch": 0, "step": 0, **lessons.classes})
    seen = Seen([each.name for each in prepared.card.classes])
    num_epochs = sum(phase.epochs for phase in recipe.phases)
    num_steps = recipe.steps_per_epoch * num_epochs

    make = _batch_maker(job, prepared, lessons, recipe)
    feed = _feed(job, prepared, make, seen, (num_epochs, recipe.steps_per_epoch), reporter)
    with closing(feed), reporter.bar("train", num_steps, "step") as bar:
        bar.advance(done)
        hooks = Hooks(
            batches=feed.batches,
            validate=lambda model: {
                **validate(job.task, prepared, model),
                "mix": seen.as_dict(),
                **what_moved(meter, reporter),
            },
            log=partial(log_and_say, job.task, log, bar, reporter),
            save_state=lambda tensors, where: save_state(run.state, prepared.model, in_full(tensors), where),
            save_epoch=partial(_save_epoch, run, prepared, task.score),
            copied_s=feed.copied_s,
        )
        with _shortage_told():
            held = None if state is None else (as_held(prepared.model, state[0]), state[1])
            return fit(prepared.model, step, recipe, hooks, held)


def _batch_maker(job: Job, prepared: Prepared, lessons: _Lessons, recipe: Recipe) -> BatchMaker:
    """Make samples with the maps that model and loss want, and the totals that the phases divide by."""
    from outsize.data.edges import map_maker
    from outsize.tasks import TASKS
    from outsize.train.feed import BatchMaker
    from outsize.train.phases import label_strides

    task, card = TASKS[job.task], prepared.card
    strides = label_strides(prepared.model, [phase.output for phase in recipe.phases])
    maps = task.wanted_maps(prepared.model, job.train.loss)
    return BatchMaker(
        lessons.windows,
        partial(task.count_terms, strides=strides),
        job.train.loss,
        lessons.weights,
        num_classes=len(card.classes),
        batch=job.train.batch,
        make_maps=map_maker(maps, card.dtype, card.statistics),
        seed=job.seed,
    )


@contextmanager
def _shortage_told() -> Iterator[None]:
    """Say in one line that memory ran out in the optimizer or in validation; steps help themselves."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        found, need = (
            str(error).partition(". ")[0],
            "memory for the optimizer and for validation besides steps",
        )
        remedy = "free memory on the device or set limits.gpu_memory lower, and go on with --resume"
        raise RunError(explain("memory ran out between two steps", found, need, remedy)) from error


def _tell(text: str, log: TrainingLog, reporter: Reporter) -> None:
    """Warn that the plan could not be carried out as it is, and leave that in the run."""
    reporter.say("warning", f"warning: {text}")
    log.line({"kind": "plan", "phase": 0, "epoch": 0, "step": 0, "warning": text})


def _feed(
    job: Job, prepared: Prepared, make: BatchMaker, seen: Seen, length: tuple[int, int], reporter: Reporter
) -> Feed:
    """Have batches made by processes for a GPU, whose kernels are launched from Python, and by threads else."""
    from outsize.data.processes import can_share
    from outsize.train.feed import Feed

    section, on_gpu = job.train, prepared.device.type == "cuda"
    batch_bytes = section.batch * make.windows.sample_bytes
    in_processes = on_gpu and can_share(batch_bytes, section.workers)
    if on_gpu and not in_processes:
        text = "warning: /dev/shm is too small for processes: threads prepare samples, and the GPU may wait for them"
        reporter.say("warning", text)
    return Feed(
        make,
        seen,
        num_epochs=length[0],
        steps_per_epoch=length[1],
        num_workers=section.workers,
        in_processes=in_processes,
        device=prepared.device,
        decoded_bytes=room_for_pictures(prepared.train_plan, job.limits),
    )


@dataclass(frozen=True)
class _Lessons:
    """What is learnt from."""

    windows: TrainingWindows
    weights: Weights | WeightsByStride
    classes: dict[str, Any]  # their shares and weights, where the labels were counted


def _open_lessons(job: Job, prepared: Prepared, reporter: Reporter) -> _Lessons:
    """Open what is drawn from, and say what the classes weigh; labels are read for it only where needed."""
    from outsize.data.blocks import index_blocks
    from outsize.data.sampling import Mix
    from outsize.data.windows import TrainingWindows

    section = job.train
    mix = Mix(section.rare_share, section.empty_share)
    index, weights, classes = None, None, {}
    if mix.needs_index or section.class_weights != "none":
        names = [each.name for each in prepared.card.classes]
        with reporter.bar("classes", len(prepared.splits.train), "scene") as bar:
            index = index_blocks(
                prepared.splits.train,
                prepared.table,
                len(names),
                # a quarter: a window of half the side, as `scale` may read, still holds a whole block
                block_px=max(8, min(section.window_px) // 4),
                num_threads=section.workers,
                bar=bar,
            )
        each_weights = _weights_of_phases(job, prepared, index.of_scenes)
        last = list(each_weights.values())[-1]
        weights = last if len(set(each_weights.values())) == 1 else each_weights
        classes = _say_classes(names, index.of_scenes.sum(0), last, reporter)
    windows = TrainingWindows(
        prepared.splits.train,
        prepared.table,
        tile_px=section.tile_px,
        augmentations=section.augment,
        statistics=prepared.card.statistics,
        seed=job.seed,
        mix=mix,
        index=index,
    )
    return _Lessons(windows, weights, classes)


def _weights_of_phases(job: Job, prepared: Prepared, num_px: NDArray[np.int64]) -> dict[int, Weights]:
    """Return the class weights by the stride that phases reduce labels by, in the order of phases."""
    from outsize.losses.weights import class_weights
    from outsize.train.phases import label_strides

    names = [each.name for each in prepared.card.classes]
    found: dict[int, Weights] = {}
    for phase in job.train.all_phases():
        offset = phase.log_offset or job.train.log_offset
        weights = class_weights(job.train.class_weights, num_px, names, log_offset=offset)
        [stride] = label_strides(prepared.model, [phase.output])
        if found.setdefault(stride, weights) != weights:
            need = "one constant for all phases of an output"
            remedy = "give them the same, or train in two runs by train.init"
            raise JobError(explain("train.phases.log_offset changes", f"{offset:g}", need, remedy))
    return found


def _say_classes(
    names: Sequence[str], num_px: NDArray[np.int64], weights: Weights, reporter: Reporter
) -> dict[str, Any]:
    total = int(num_px.sum())
    shares = {name: int(num) / total for name, num in zip(names, num_px, strict=True)}
    each_weight = dict(zip(names, weights or (1.0,) * len(names), strict=True))
    text = ", ".join(f"{name} {shares[name]:.2%} (weight {each_weight[name]:.3g})" for name in names)
    classes = {"class_shares": shares, "class_weights": each_weight}
    reporter.say("classes", f"labelled to train on: {text}", **classes)
    return classes


def _recipe(job: Job, windows: TrainingWindows) -> Recipe:
    from outsize.tasks import TASKS
    from outsize.train.loop import Recipe
    from outsize.train.phases import Schedule, TrainPhase

    section = job.train
    num_samples = section.samples_per_epoch or windows.samples_per_cover
    return Recipe(
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
        schedule=Schedule(
            section.schedule, section.warmup_steps, section.power, section.step_epochs, section.step_factor
        ),
        optimizer=section.optimizer,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        steps_per_epoch=max(1, num_samples // section.batch),
        seed=job.seed,
        early_stop_epochs=section.early_stop_epochs,
        max_s=None if section.max_minutes is None else 60 * section.max_minutes,
        score=TASKS[job.task].score,
        checkpoint_steps=section.checkpoint_steps,
    )


def _save_epoch(run: RunFolder, prepared: Prepared, score: str, position: Position, best: bool) -> None:
    from outsize.train.checkpoint import save_checkpoint

    trained = {"phase": position.phase, "epoch": position.total_epochs, "step": position.total_steps}
    card = replace(prepared.card, trained={**trained, f"best_{score}": position.best_score})
    if best:
        save_checkpoint(run.best, prepared.model, card)
    save_checkpoint(run.last, prepared.model, card)
