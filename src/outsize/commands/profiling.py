"""Runs one real step of a job on the GPU at hand before it is planned, so that times are seen and not modelled."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outsize.commands.aside import NoAnswer, run_aside
from outsize.job import Job
from outsize.plan.plan import Fuse
from outsize.plan.step import StepFacts
from outsize.progress import Reporter
from outsize.units import Size, format_seconds, format_size, sides_of, size_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.commands.planning import Situation
    from outsize.measure.profiled import Seen
    from outsize.plan.times import Learnt
    from outsize.strategies.step import Terms

_LEAST_SIDE_PX = 64


def learn_here(
    job: Job,
    model: nn.Module,
    num_bands: int,
    where: Situation,
    step_of: Callable[[int, Size], StepFacts],
    reporter: Reporter,
) -> Learnt | None:
    """Run plain steps of the job's size, or the largest of which there is room, and return what they teach.

    What was learnt before of the same step on the same device is recalled. None where no step could be run.
    """
    from outsize.measure.profiled import recall_or_learn

    section, device = job.train, where.device
    assert device is not None

    def learn_now() -> Learnt | None:
        reporter.say(
            "profiling", f"running a step on {device} to learn its time; remembered for the next plan"
        )
        for batch, side_px in _sizes(section.batch, section.tile_px):
            shape = (batch, num_bands, *sides_of(side_px))
            learnt = _learn(job, model, shape, where, step_of)
            if learnt is not None:
                return learnt
        return None

    learnt = recall_or_learn(
        _names(job, model, num_bands, where),
        device,
        learn_now,
        tell=lambda text: reporter.say("warning", f"warning: {text}"),
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


def learn_from_shortage(job: Job, model: nn.Module, num_bands: int, where: Situation, more: float) -> None:
    """Let the next plan of this job leave more room: a step wanted so many times what was predicted of it."""
    from outsize.measure.profiled import LEAST_USABLE, relearn

    if where.device is None or where.learnt is None or where.learnt.usable_share is None:
        return
    share = max(LEAST_USABLE, where.learnt.usable_share / more)
    relearn(_names(job, model, num_bands, where), where.device, at_most=share)


def _names(job: Job, model: nn.Module, num_bands: int, where: Situation) -> list[str]:
    """List all that a lesson of a job's step hangs on."""
    from outsize.measure.profiled import name_of

    section = job.train
    return [
        name_of(model),
        section.loss,
        section.optimizer,
        f"bf16 {where.bf16}",
        f"fused {where.fuse}",
        f"allocator {os.environ.get('PYTORCH_ALLOC_CONF')}",
        f"{section.batch} x {num_bands} x {format_size(section.tile_px)}",
        str(where.rates),  # what is learnt is by how much they are off
    ]


def _sizes(batch: int, side_px: Size) -> Iterator[tuple[int, Size]]:
    """Yield the batch that is asked for, half of it and so on, then smaller windows."""
    yield batch, side_px
    while batch > 1:
        batch = -(-batch // 2)
        yield batch, side_px
    height, width = sides_of(side_px)
    while min(height, width) >= 2 * _LEAST_SIDE_PX and height % 2 == width % 2 == 0:
        height, width = height // 2, width // 2
        yield batch, size_of(height, width)


def _learn(
    job: Job,
    model: nn.Module,
    shape: tuple[int, int, int, int],
    where: Situation,
    step_of: Callable[[int, Size], StepFacts],
) -> Learnt | None:
    """Learn from steps of one size; None where there is no room for them, or the model does not run on it."""
    from outsize.errors import TraceError
    from outsize.measure.machine import free_gpu_bytes
    from outsize.measure.profiled import taught_by
    from outsize.plan.choose import USABLE
    from outsize.plan.cost import StepCost

    batch, side_px = shape[0], size_of(*shape[2:])
    device = where.device
    assert device is not None
    try:
        facts = step_of(batch, side_px)
    except TraceError:
        return None
    cuda = device.type == "cuda"
    if cuda and StepCost(facts).peak_bytes() > USABLE["cuda"] * free_gpu_bytes(device):
        return None
    subject = Subject(job, model, shape, device, where.bf16, where.fuse)
    try:
        seen = run_aside(see, subject) if cuda else see(subject)
    except NoAnswer:  # of a GPU that takes one process only, or of a model that cannot be sent
        seen = see(subject)
    return None if seen is None else taught_by(seen, facts.ops, where.clock, batch=batch, side_px=side_px)


@dataclass(frozen=True)
class Subject:
    """A step to look at."""

    job: Job
    model: nn.Module
    shape: tuple[int, int, int, int]
    device: torch.device
    bf16: bool
    fuse: Fuse | None


def see(subject: Subject) -> Seen | None:
    """Run steps and look at them; None where there is no room for them."""
    import torch

    from outsize.measure.machine import sweep
    from outsize.measure.profiled import look_at

    device = subject.device
    cuda = device.type == "cuda"
    run: Callable[[], object] | None
    try:
        with torch.random.fork_rng(devices=[device] if cuda else []):
            if cuda:
                torch.cuda.set_device(device)
            model, shape = subject.model, subject.shape
            run = real_step(subject.job, model, shape, device, bf16=subject.bf16, fuse=subject.fuse).run
            return look_at(run, device)
    except torch.OutOfMemoryError:
        return None
    finally:
        run = None
        sweep(device)  # the step and its optimizer know each other


@dataclass(frozen=True)
class RealStep:
    """A step that can be run again and again, and the copy of a model that it trains."""

    run: Callable[[], Terms]
    model: nn.Module


def real_step(
    job: Job,
    model: nn.Module,
    shape: tuple[int, int, int, int],
    device: torch.device,
    *,
    bf16: bool,
    tell: Callable[[str], object] = warnings.warn,
    **settings: Any,
) -> RealStep:
    """Return a training step on a copy of the model and made-up pixels, run as a plan with these settings has it."""
    import torch

    from outsize.data.batch import Batch
    from outsize.data.statistics import BandStatistics
    from outsize.plan.plan import Plan
    from outsize.strategies.compose import compose
    from outsize.tasks import TASKS
    from outsize.train.checkpoint import to_device
    from outsize.train.optimizer import make_optimizer

    section, task = job.train, TASKS[job.task]
    num_samples, num_bands, height, width = shape
    generator = torch.Generator().manual_seed(job.seed)  # the run's own draws stay as they were
    images = torch.randn(shape, generator=generator)
    labels = torch.randint(
        len(job.data.classes), (num_samples, height, width), generator=generator, dtype=torch.uint8
    )
    totals = task.count_terms(section.loss, labels, None)
    statistics = BandStatistics((0.0,) * num_bands, (1.0,) * num_bands)
    batch = Batch(images, torch.ones(labels.shape, dtype=torch.bool), labels, totals)
    batch = task.complete(batch, model, section.loss, statistics).to(device)
    twin = to_device(copy.deepcopy(model), device).train()
    terms = task.make_loss_terms(section.loss, statistics, None)
    plan = Plan("train", num_samples, limit_bytes=1, peak_bytes=1, exact=True, why=())
    step = compose(twin, terms, replace(plan, **settings), bf16=bf16, tell=tell)
    optimizer = make_optimizer(
        twin, section.optimizer, lr=section.lr, momentum=section.momentum, weight_decay=section.weight_decay
    )

    def run() -> Terms:
        terms = step(batch, last=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return terms

    return RealStep(run, twin)
