"""Tries whether a job's step is faster as one CUDA graph, on the GPU at hand and where there is memory to keep it.

In a process of its own: a recording that fails may leave torch's allocator and its random numbers in the middle of it.
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import pickle
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.commands.profiling import RealStep, real_step
from outsize.job import Job
from outsize.plan.plan import Fuse, Plan
from outsize.progress import Reporter
from outsize.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch
    from torch import nn

    from outsize.commands.planning import Situation

_LONG_S = 0.2  # a step that is predicted to take longer is not made of short kernels
# Of the time that it takes kernel by kernel in a process that does nothing else: as fast will do, for in a training the
# host has batches to bring as well (a step of 22 ms took 31 there).
_WORTH = 1.01
_NUM_TIMED = 8
_PATIENCE_S = 180
_APART = 0.02  # of the losses of either way: rounding of a dozen steps, and not another training


@dataclass(frozen=True)
class Recorded:
    """What a step takes called kernel by kernel, and replayed."""

    called_s: float
    replayed_s: float
    held_bytes: int  # of the GPU, with the recording


_CANNOT_BE = Recorded(0.0, 0.0, 0)  # recorded; remembered, too, lest it be tried at each start


@dataclass(frozen=True)
class _Trial:
    """What the process that tries has to know."""

    job: Job
    model: nn.Module
    num_bands: int
    fuse: Fuse | None
    bf16: bool
    device: torch.device


def recorded_where_faster(
    job: Job,
    model: nn.Module,
    num_bands: int,
    train_plan: Plan,
    predict_plan: Plan,
    where: Situation,
    reporter: Reporter,
) -> Plan:
    """Return the plan of training with a recorded step where that is faster, and fits beside validation."""
    from outsize.plan.choose import usable_bytes

    if not _is_worth_a_trial(job, train_plan, where):
        return train_plan
    found = _recall_or_try(job, model, num_bands, train_plan, where, reporter)
    if found == _CANNOT_BE or found.replayed_s > _WORTH * found.called_s:
        return train_plan
    # a recording keeps its memory while a validation runs
    if found.held_bytes + predict_plan.peak_bytes > usable_bytes(where.machine, job.limits):
        return train_plan
    times = f"{format_seconds(found.replayed_s)} in place of {format_seconds(found.called_s)} seen here"
    why = f"its kernels need not wait for the host: recorded as one CUDA graph, {times}"
    why = f"{why}, and {format_bytes(found.held_bytes)}"
    return replace(
        train_plan,
        graph=True,
        step_s=found.replayed_s,
        peak_bytes=max(train_plan.peak_bytes, found.held_bytes),
        why=(*train_plan.why, why),
    )


def _is_worth_a_trial(job: Job, plan: Plan, where: Situation) -> bool:
    """Whether a step may be recorded at all: objects differ in number, and what saves memory calls the host."""
    if not job.train.graph or job.data.objects or where.device is None or where.kind != "cuda":
        return False
    return plan == plan.plain() and (plan.step_s is None or plan.step_s < _LONG_S)


def _recall_or_try(
    job: Job, model: nn.Module, num_bands: int, plan: Plan, where: Situation, reporter: Reporter
) -> Recorded:
    """Return what was seen before of the same step on the same device, or try it now."""
    from outsize.measure.profiled import name_of
    from outsize.measure.remembered import cache_folder, fingerprint, key_of, recall_or_make

    section, device = job.train, where.device
    assert device is not None
    names = [name_of(model), section.loss, section.optimizer, str(where.bf16), str(plan.fuse)]
    names += [str(section.batch), str(num_bands), str(section.tile_px), fingerprint(device)]
    # the host's speed decides
    names += [platform.node(), str(os.cpu_count()), str(os.environ.get("PYTORCH_ALLOC_CONF"))]

    def try_now() -> Recorded:
        reporter.say(
            "recording", "trying whether the step is faster as one CUDA graph; remembered for the next time"
        )
        return _try_apart(_Trial(job, model, num_bands, plan.fuse, where.bf16, device)) or _CANNOT_BE

    return recall_or_make(cache_folder(), f"graph-{key_of(names)}.json", read=_recall, make=try_now)


def _try_apart(trial: _Trial) -> Recorded | None:
    """Try in another process; None where it cannot be, whatever the reason."""
    try:
        # as bytes: shared memory, which tensors would be sent by, is scarce in containers
        sent = pickle.dumps(trial)
    except (pickle.PicklingError, AttributeError, TypeError):  # a model that cannot be sent
        return None
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_try_sent, args=(sent, there), daemon=True)
    process.start()
    there.close()
    try:
        found: Recorded | None = here.recv() if here.poll(_PATIENCE_S) else None
    except EOFError:  # it ended without a word
        found = None
    finally:
        process.kill()
        process.join()
    return found


def _try_sent(sent: bytes, back: Connection) -> None:
    import torch

    trial: _Trial = pickle.loads(sent)  # our own, a moment ago
    try:
        torch.cuda.set_device(trial.device)
        back.send(_tried(trial))
    except (RuntimeError, AssertionError):  # no GPU for a second process, no memory, an operation that waits
        back.send(None)


def _tried(trial: _Trial) -> Recorded | None:
    """Run both ways from the same weights; None where the recording fails, or does not train alike."""
    import torch

    shape = (trial.job.train.batch, trial.num_bands, *trial.job.train.window_px)
    told: list[str] = []
    seconds, losses = [], []
    for graph in (False, True):
        step = real_step(
            trial.job,
            trial.model,
            shape,
            trial.device,
            bf16=trial.bf16,
            tell=told.append,
            fuse=trial.fuse,
            graph=graph,
        )
        own_s, own_losses = _run(step, trial.device)
        seconds.append(own_s)
        losses.append(own_losses)
        held_bytes = torch.cuda.memory_reserved(trial.device)
        del step
        gc.collect()  # the step and its optimizer know each other
        torch.cuda.empty_cache()
    alike = all(abs(one - other) <= _APART * abs(one) for one, other in zip(*losses, strict=True))
    return None if told or not alike else Recorded(seconds[0], seconds[1], held_bytes)


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


def _recall(path: Path) -> Recorded | None:
    """Return what was seen; None where there is no file, or it is not sound."""
    try:
        found = Recorded(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    sound = all(isinstance(each, int | float) and 0 < each < math.inf for each in asdict(found).values())
    return found if sound or found == _CANNOT_BE else None
