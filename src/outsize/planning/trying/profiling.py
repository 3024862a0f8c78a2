"""Runs one real step of a job on the GPU at hand before it is planned, so that times are seen and not modelled."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from outsize.job import Job
from outsize.plan.effort import Budget, Effort, TrialStep, cap_bytes, samples, why_profiled_so
from outsize.plan.plan import Fuse
from outsize.plan.step import StepFacts
from outsize.planning.trying.child import NoAnswer, TookTooLong, run_in_child
from outsize.progress import Reporter
from outsize.units import Size, format_seconds, format_size, sides_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.measure.learning import SeenStep
    from outsize.plan.times import Learnt
    from outsize.planning.situation import Situation
    from outsize.strategies.step import Terms

_MUCH_MORE = 1.1  # room than a smaller step had: worth another profile


def learn_here(
    job: Job,
    model: nn.Module,
    num_bands: int,
    where: Situation,
    step_of: Callable[[int, Size], StepFacts],
    reporter: Reporter,
    effort: Effort | None = None,
) -> Learnt | None:
    """Run plain steps of the job's size, or the largest for which there is room and time, and return what they teach.

    What was learnt before of the same step on the same device is recalled. None where no step could be run. The process
    that runs them takes no more of a GPU than the job's limit.
    """
    from outsize.measure.learning import recall_or_learn

    section, device = job.train, where.device
    assert device is not None
    budget = (effort or Effort()).budget

    def is_enough(known: Learnt) -> bool:
        """Whether it was the job's own step, or there is hardly more room than there was for that."""
        whole = (known.batch, known.side_px) == (section.batch, section.tile_px)
        return whole or _room(job, where)[0] <= _MUCH_MORE * known.room_bytes

    learnt = recall_or_learn(
        _names(job, model, num_bands, where),
        device,
        lambda: _learn(job, model, num_bands, where, step_of, budget, reporter),
        warn=lambda text: reporter.say("warning", f"warning: {text}"),
        is_enough=is_enough,
    )
    if learnt is not None:
        share = (
            ""
            if learnt.usable_share is None
            else f", tensors fill {learnt.usable_share:.0%} of what torch holds"
        )
        text = f"a real step of {learnt.batch} x {format_size(learnt.side_px)}"
        reporter.say("profiled", f"{text}: {format_seconds(learnt.host_op_s)} to call an operation{share}")
    return learnt


def _learn(
    job: Job,
    model: nn.Module,
    num_bands: int,
    where: Situation,
    step_of: Callable[[int, Size], StepFacts],
    budget: Budget,
    reporter: Reporter,
) -> Learnt | None:
    """Run the largest step for which there is room and time; None where there is none."""
    from outsize.measure.learning import taught_by

    section, device = job.train, where.device
    assert device is not None
    room_bytes, cap = _room(job, where)
    look = partial(_look, where, step_of)
    every = samples(look, section.batch, section.tile_px, room_bytes=room_bytes, time_s=lambda: budget.left_s)
    for sample in every:
        title = f"a real step of {sample.batch} x {format_size(sample.side_px)}"
        what = f"running {title} on {device} to learn its time; remembered for the next plan"
        reporter.say("profiling", what)
        shape = (sample.batch, num_bands, *sides_of(sample.side_px))
        subject = ProfiledStep(job, model, shape, device, where.bf16, where.fuse, cap)
        with reporter.bar(title, math.ceil(budget.left_s), "s") as bar:
            try:
                seen = _seen(subject, budget, bar.advance)
            except TookTooLong as error:
                reporter.say("warning", f"warning: {title} was not seen to its end: {error}")
                return None
        if seen is not None:
            ops = step_of(sample.batch, sample.side_px).ops
            learnt = taught_by(seen, ops, where.clock, batch=sample.batch, side_px=sample.side_px)
            return replace(learnt, room_bytes=room_bytes if math.isfinite(room_bytes) else 0.0)
    return None


def why_so(
    job: Job, where: Situation, step_of: Callable[[int, Size], StepFacts], learnt: Learnt | None
) -> str | None:
    """Say what times of a plan are those of, where no step of the job's own size was run."""
    from outsize.plan.limits import limit_of

    section = job.train
    whole = _look(where, step_of, section.batch, section.tile_px)
    return why_profiled_so(
        learnt,
        section.batch,
        section.tile_px,
        limit_bytes=limit_of(where.machine, job.limits),
        peak_bytes=None if whole is None else whole.peak_bytes,
    )


def _room(job: Job, where: Situation) -> tuple[float, int]:
    """Return what tensors of a step that is run may fill, and what torch may hold for it, within the job's limit."""
    from outsize.measure.memory import free_gpu_bytes
    from outsize.plan.limits import USABLE, limit_of

    device = where.device
    assert device is not None
    if device.type != "cuda":
        return math.inf, 0
    cap = cap_bytes(min(limit_of(where.machine, job.limits), free_gpu_bytes(device)))
    return USABLE["cuda"] * cap, cap


def _look(
    where: Situation, step_of: Callable[[int, Size], StepFacts], batch: int, side_px: Size
) -> TrialStep | None:
    """Follow a step on shapes; None where the model does not run on that size."""
    from outsize.errors import TraceError
    from outsize.plan.cost import StepCost

    try:
        facts = step_of(batch, side_px)
    except TraceError:
        return None
    return TrialStep(batch, side_px, StepCost(facts).peak_bytes(), where.clock.step_s(facts.ops))


def remembered_lesson(job: Job, model: nn.Module, num_bands: int, where: Situation) -> Learnt | None:
    """Return what is remembered of a real step of a job; None where nothing is."""
    from outsize.measure.learning import recall_lesson

    assert where.device is not None
    return recall_lesson(_names(job, model, num_bands, where), where.device)


def learn_from_shortage(job: Job, model: nn.Module, num_bands: int, where: Situation, more: float) -> None:
    """Let the next plan of this job leave more room: a step wanted so many times what was predicted of it."""
    from outsize.measure.learning import relearn

    if where.device is None or where.learnt is None or where.learnt.usable_share is None:
        return
    share = where.learnt.usable_share / more
    relearn(_names(job, model, num_bands, where), where.device, at_most=share)


def _names(job: Job, model: nn.Module, num_bands: int, where: Situation) -> list[str]:
    """List all that a lesson of a job's step hangs on."""
    from outsize.measure.remembered import text_of

    section = job.train
    return [
        text_of(model),
        section.loss,
        section.optimizer,
        f"bf16 {where.bf16}",
        f"fused {where.fuse}",
        f"allocator {os.environ.get('PYTORCH_ALLOC_CONF')}",
        f"{section.batch} x {num_bands} x {format_size(section.tile_px)}",
        str(where.rates),  # what is learnt is by how much they are off
    ]


def _seen(subject: ProfiledStep, budget: Budget, tick: Callable[[], object]) -> SeenStep | None:
    """Look at steps, on a GPU in a process of its own; None where there was no room for them after all."""
    if subject.device.type != "cuda":
        return see(subject)
    try:
        return run_in_child(see, subject, patience_s=budget.left_s, tick=tick)
    except TookTooLong:
        raise
    except NoAnswer:  # of a GPU that takes one process only, or of a model that cannot be sent
        return see(subject)


@dataclass(frozen=True)
class ProfiledStep:
    """A step to look at."""

    job: Job
    model: nn.Module
    shape: tuple[int, int, int, int]
    device: torch.device
    bf16: bool
    fuse: Fuse | None
    cap_bytes: int = 0  # that torch may hold of a GPU for it; 0: not known


def see(subject: ProfiledStep) -> SeenStep | None:
    """Run steps and look at them; None where there is no room for them."""
    import torch

    from outsize.measure.learning import look_at
    from outsize.measure.memory import capped, sweep

    device = subject.device
    cuda = device.type == "cuda"
    run: Callable[[], object] | None
    try:
        with torch.random.fork_rng(devices=[device] if cuda else []), ExitStack() as ends:
            if cuda:
                torch.cuda.set_device(device)
                ends.enter_context(capped(device, subject.cap_bytes))
            model, shape = subject.model, subject.shape
            run = real_step(subject.job, model, shape, device, bf16=subject.bf16, fuse=subject.fuse)
            return look_at(run, device)
    except torch.OutOfMemoryError:
        return None
    finally:
        run = None
        sweep(device)  # the step and its optimizer know each other


def real_step(
    job: Job,
    model: nn.Module,
    shape: tuple[int, int, int, int],
    device: torch.device,
    *,
    bf16: bool,
    tell: Callable[[str], object] = warnings.warn,
    **settings: Any,
) -> Callable[[], Terms]:
    """Return what runs a training step on a copy of the model and made-up pixels, as a plan of these settings."""
    from outsize.plan.plan import unplanned
    from outsize.tasks import task_of
    from outsize.train.made_up import make_up_step

    num_classes = len(job.data.classes)
    made_up = make_up_step(model, task_of(job.task), job.train, shape, num_classes, device, bf16=bf16)
    return made_up.runs(made_up.composed(unplanned(**settings), tell=tell))
