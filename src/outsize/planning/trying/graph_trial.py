"""Runs a step both ways on the GPU at hand: called kernel by kernel, and replayed as one CUDA graph."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outsize.job import Job
from outsize.plan.effort import PATIENCE_S
from outsize.plan.plan import Plan
from outsize.planning.trying.child import NoAnswer, run_in_child
from outsize.planning.trying.profiling import real_step

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.strategies.step import Terms

_NUM_TIMED = 8
_APART = 0.02  # of the losses of either way: rounding of a dozen steps, and not another training
# Or so many times what the plain step is from one whose weights are nudged by rounding: a norm over a few numbers that
# are nearly the same, as in the pooled branch of DeepLabv3+, makes per cents of it.
_TIMES_APART, _NUDGE = 4.0, 1e-6


@dataclass(frozen=True)
class Recorded:
    """What a step takes called kernel by kernel, and replayed; or why it cannot be recorded."""

    called_s: float
    replayed_s: float
    held_bytes: int  # of the GPU, with the recording
    why_not: str = ""
    is_passing: bool = False  # the reason may be gone the next time: nothing to remember


@dataclass(frozen=True)
class GraphTrial:
    """What the process that tries has to know."""

    job: Job
    model: nn.Module
    num_bands: int
    plan: Plan
    bf16: bool
    device: torch.device


def cannot_be(why: str) -> Recorded:
    """Return that a step cannot be recorded; remembered, too, so that it is not tried at each start."""
    return Recorded(0.0, 0.0, 0, why)


def try_aside(
    trial: GraphTrial, *, patience_s: float = PATIENCE_S, tick: Callable[[], object] = lambda: None
) -> Recorded:
    """Try in another process, as long as there is patience for it."""
    try:
        return run_in_child(_tried_there, trial, patience_s=patience_s, tick=tick)
    except NoAnswer as error:  # also: no GPU for a second process, no memory, an operation that waits
        return replace(cannot_be(str(error)), is_passing=True)


def _tried_there(trial: GraphTrial) -> Recorded:
    import torch

    from outsize.measure.memory import capped

    torch.cuda.set_device(trial.device)
    with capped(trial.device, trial.plan.limit_bytes):
        return tried(trial)


def tried(trial: GraphTrial) -> Recorded:
    """Run the recorded step, and the plain one from the same weights and from weights next to them.

    Where the plain one has no room, losses of the recorded one shall at least be numbers.
    """
    import torch

    from outsize.strategies.cudagraph import NO_MEMORY

    messages: list[str] = []
    try:
        recorded = _ran(trial, trial.model, tell=messages.append, graph=True, paged=trial.plan.paged)
    except torch.OutOfMemoryError as error:
        if not trial.plan.paged:
            raise
        # within the same limit it will be so the next time, too, unless it is another process that has the memory
        return replace(cannot_be(str(error)), is_passing=NO_MEMORY in str(error))
    if messages:
        return cannot_be(messages[0])
    if not all(map(math.isfinite, recorded.losses)):
        return cannot_be("its losses are no numbers")
    try:
        plain, nudged = _ran(trial, trial.model), _ran(trial, _nudged(trial.model))
    except torch.OutOfMemoryError:
        if not trial.plan.paged:
            raise
        return Recorded(recorded.seconds, recorded.seconds, recorded.held_bytes)
    apart, unsure = _apart(plain.losses, recorded.losses), _apart(plain.losses, nudged.losses)
    if apart > max(_APART, _TIMES_APART * unsure):
        return cannot_be(f"it does not train alike: losses are {apart:.1%} apart, by rounding {unsure:.1%}")
    return Recorded(min(plain.seconds, nudged.seconds), recorded.seconds, recorded.held_bytes)


@dataclass(frozen=True)
class _Ran:
    """What a few steps showed."""

    seconds: float  # of one
    losses: list[float]
    held_bytes: int


def _ran(
    trial: GraphTrial, model: nn.Module, tell: Callable[[str], object] = lambda _: None, **settings: bool
) -> _Ran:
    """Run a few steps of a copy of the model, and let it go."""
    import torch

    from outsize.measure.memory import sweep

    plan, section = trial.plan, trial.job.train
    step = real_step(
        trial.job,
        model,
        (section.batch, trial.num_bands, *section.window_px),
        trial.device,
        bf16=trial.bf16,
        tell=tell,
        fuse=plan.fuse,
        recompute=plan.recompute,
        swap=plan.swap,
        **settings,
    )
    try:
        seconds, losses = _run(step, trial.device)
        return _Ran(seconds, losses, torch.cuda.memory_reserved(trial.device))
    finally:
        del step
        sweep(trial.device)  # the step and its optimizer know each other


def _nudged(model: nn.Module) -> nn.Module:
    import torch

    twin, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in twin.parameters():
            each.mul_(1 + _NUDGE * torch.randn(each.shape, generator=generator).to(each))
    return twin


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, other, strict=True))


def _run(run: Callable[[], Terms], device: torch.device) -> tuple[float, list[float]]:
    """Return the time of a step, and the losses of the first and of the last ones."""
    import torch

    from outsize.strategies.cudagraph import NUM_PLAIN

    def one(number: int) -> torch.Tensor:
        torch.manual_seed(number)  # dropout draws alike
        return torch.stack(list(run().values())).sum()

    first = [one(number) for number in range(NUM_PLAIN + 2)]
    torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    last = [one(number) for number in range(_NUM_TIMED)]
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start_s) / _NUM_TIMED, [float(each) for each in (*first, *last)]
