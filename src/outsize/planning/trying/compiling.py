"""Tries to compile the blocks of a job's model before it is planned: nobody can look into compiled code beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outsize.errors import PlanError, TraceError
from outsize.job import Job
from outsize.plan.plan import Compile, Fuse
from outsize.plan.step import StepFacts
from outsize.plan.ways.compiled import Compiled, blocks_to_compile
from outsize.planning.trying.profiling import RealStep, real_step
from outsize.progress import Reporter
from outsize.units import Size

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.planning.jobs.planning import Situation

_BUDGETS = (None, 0.5)  # shares of what a block keeps: as the compiler likes, and half
_NUM_SAMPLES = 2  # of the batch: batch norm of a small window wants more than one


def try_compiled(
    job: Job,
    model: nn.Module,
    num_bands: int,
    where: Situation,
    step_of: Callable[[int, Size], StepFacts],
    reporter: Reporter,
) -> tuple[Compiled, ...]:
    """Run a few samples plainly and compiled, and return what that does to memory and time; () where it cannot be.

    What is found holds for any batch: what blocks keep grows with the pixels, the device's time is told as a share, and
    the host calls as many kernels.
    """
    import torch

    from outsize.measure.machine.machine import sweep

    section, device, bf16 = job.train, where.device, where.bf16
    assert device is not None
    num_samples, side_px = min(section.batch, _NUM_SAMPLES), section.tile_px
    try:
        facts = step_of(num_samples, side_px)
    except TraceError:
        return ()
    paths = blocks_to_compile(facts)
    shape = (num_samples, num_bands, *section.window_px)
    found = []
    reporter.say("compiling", f"compiling {len(paths)} blocks to see what that brings: this takes a while")
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            plain_s, _ = _seconds(real_step(job, model, shape, device, bf16=bf16, fuse=where.fuse), device)
            for budget in _BUDGETS:
                found.append(_tried(job, model, shape, where, Compile(paths, budget), facts, plain_s))
    except PlanError as error:  # a block that torch.compile cannot take: told, and the plan does without
        reporter.say("warning", f"warning: nothing is compiled: {error}")
        return ()
    except torch.OutOfMemoryError:
        reporter.say("warning", "warning: nothing is compiled: a few samples do not fit plainly")
        return ()
    finally:
        sweep(device)  # steps and their optimizers know each other
    return tuple(found)


def _tried(
    job: Job,
    model: nn.Module,
    shape: tuple[int, int, int, int],
    where: Situation,
    setting: Compile,
    facts: StepFacts,
    plain_s: float,
) -> Compiled:
    from outsize.measure.tracing.compiled import compiled_saved_bytes, rise_bytes

    device = where.device
    assert device is not None
    # compiled blocks fuse their layers themselves, and cross-entropy lies outside of them
    fuse = None if where.fuse is None else Fuse()
    step = real_step(job, model, shape, device, bf16=where.bf16, compile=setting, fuse=fuse)
    seconds, host_s = _seconds(step, device)
    num_px = shape[0] * shape[2] * shape[3]
    saved = compiled_saved_bytes(step.run, step.model, setting.paths, num_px=num_px)
    found = Compiled(setting, saved, seconds / plain_s, host_s)
    return found.corrected(facts, num_px, rise_bytes(step.run, device))


def _seconds(step: RealStep, device: torch.device) -> tuple[float, float]:
    """Return what a step takes of the device and of the host."""
    from outsize.measure.machine.profiled import device_and_host_s

    return device_and_host_s(step.run, device)
