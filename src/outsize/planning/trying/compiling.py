"""Tries to compile the blocks of a job's model before it is planned: nobody can look into compiled code beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outsize.errors import PlanError, TraceError
from outsize.job import Job
from outsize.plan.plan import Compile, Fuse
from outsize.plan.step import StepFacts
from outsize.plan.way import Compiled
from outsize.plan.ways import blocks_to_compile
from outsize.planning.trying.profiling import real_step
from outsize.progress import Reporter
from outsize.units import Size

if TYPE_CHECKING:
    from torch import nn

    from outsize.planning.situation import Situation

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
    """Run a few samples plainly and compiled, and return what that does to memory and time; () where it cannot be."""
    import torch

    from outsize.measure.memory import sweep

    section, device = job.train, where.device
    assert device is not None
    num_samples, side_px = min(section.batch, _NUM_SAMPLES), section.tile_px
    try:
        facts = step_of(num_samples, side_px)
    except TraceError:
        return ()
    paths = blocks_to_compile(facts)
    shape = (num_samples, num_bands, *section.window_px)
    reporter.say("compiling", f"compiling {len(paths)} blocks to see what that brings: this takes a while")
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            plain = _seen(job, model, shape, where, fuse=where.fuse)
            # compiled blocks fuse their layers themselves, and cross-entropy lies outside of them
            fuse = None if where.fuse is None else Fuse()
            return tuple(
                _compared(setting, _seen(job, model, shape, where, compile=setting, fuse=fuse), plain)
                for setting in (Compile(paths, budget) for budget in _BUDGETS)
            )
    except PlanError as error:  # a block that torch.compile cannot take: said, and the plan does without
        reporter.say("warning", f"warning: nothing is compiled: {error}")
    except torch.OutOfMemoryError:
        reporter.say("warning", "warning: nothing is compiled: a few samples do not fit plainly")
    finally:
        sweep(device)  # steps and their optimizers know each other
    return ()


@dataclass(frozen=True)
class _Seen:
    """What a step takes of the device and of the host, and how far memory rises above what is there before it."""

    device_s: float
    host_s: float
    rise_bytes: int | None  # None: nobody can count it


def _seen(
    job: Job, model: nn.Module, shape: tuple[int, int, int, int], where: Situation, **settings: Any
) -> _Seen:
    from outsize.measure.learning import device_and_host_s
    from outsize.measure.memory import rise_bytes

    assert where.device is not None
    run = real_step(job, model, shape, where.device, bf16=where.bf16, **settings)
    return _Seen(*device_and_host_s(run, where.device), rise_bytes(run, where.device))


def _compared(setting: Compile, seen: _Seen, plain: _Seen) -> Compiled:
    share = seen.rise_bytes / plain.rise_bytes if seen.rise_bytes and plain.rise_bytes else 1.0
    return Compiled(setting, seen.device_s / plain.device_s, seen.host_s, share)
