"""Runs a step both ways on the GPU at hand: called kernel by kernel, and replayed as one CUDA graph."""

from __future__ import annotations

import copy
import gc
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outsize.commands.aside import NoAnswer, run_aside
from outsize.commands.profiling import RealStep, real_step
from outsize.job import Job
from outsize.plan.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch import nn

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
class Trial:
    """What the process that tries has to know."""

    job: Job
    model: nn.Module
    num_bands: int
    plan: Plan
    bf16: bool
    device: torch.device


def cannot_be(why: str) -> Recorded:
    """Return that a step cannot be recorded; remembered, too, lest it be tried at each start."""
    return Recorded(0.0, 0.0, 0, why)


def try_aside(trial: Trial) -> Recorded:
    """Try in another process."""
    try:
        return run_aside(_tried_there, trial)
    except NoAnswer as error:  # also: no GPU for a second process, no memory, an operation that waits
        return replace(cannot_be(str(error)), is_passing=True)


def _tried_there(trial: Trial) -> Recorded:
    import torch

    torch.cuda.set_device(trial.device)
    total_bytes = torch.cuda.mem_get_info(trial.device)[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, trial.plan.limit_bytes / total_bytes), trial.device)
    return tried(trial)


def tried(trial: Trial) -> Recorded:
    """Run the plain step and the recorded one from the same weights, and the plain one from weights next to them."""
    import torch

    shape = (trial.job.train.batch, trial.num_bands, *trial.job.train.window_px)
    told: list[str] = []  # by the one that is recorded
    seconds, losses, held = [], [], []
    for model, graph in ((trial.model, False), (trial.model, True), (_nudged(trial.model), False)):
        step = real_step(
            trial.job,
            model,
            shape,
            trial.device,
            bf16=trial.bf16,
            tell=told.append if graph else lambda _: None,
            fuse=trial.plan.fuse,
            recompute=trial.plan.recompute,
            swap=trial.plan.swap,
            graph=graph,
        )
        own_s, own_losses = _run(step, trial.device)
        seconds.append(own_s)
        losses.append(own_losses)
        held.append(torch.cuda.memory_reserved(trial.device))
        del step
        gc.collect()  # the step and its optimizer know each other
        torch.cuda.empty_cache()
    if told:
        return cannot_be(told[0])
    plain, recorded, nudged = losses
    apart, unsure = _apart(plain, recorded), _apart(plain, nudged)
    if apart > max(_APART, _TIMES_APART * unsure):
        return cannot_be(f"it does not train alike: losses are {apart:.1%} apart, by rounding {unsure:.1%}")
    return Recorded(min(seconds[0], seconds[2]), seconds[1], held[1])


def _nudged(model: nn.Module) -> nn.Module:
    import torch

    twin, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in twin.parameters():
            each.mul_(1 + _NUDGE * torch.randn(each.shape, generator=generator).to(each))
    return twin


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, other, strict=True))


def _run(step: RealStep, device: torch.device) -> tuple[float, list[float]]:
    """Return the time of a step, and the losses of the first and of the last ones."""
    import torch

    from outsize.strategies.graphed import NUM_PLAIN

    def one(number: int) -> torch.Tensor:
        torch.manual_seed(number)  # dropout draws alike
        return torch.stack(list(step.run().values())).sum()

    first = [one(number) for number in range(NUM_PLAIN + 2)]
    torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    last = [one(number) for number in range(_NUM_TIMED)]
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start_s) / _NUM_TIMED, [float(each) for each in (*first, *last)]
