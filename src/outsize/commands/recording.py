"""Tries whether a job's step is faster as one CUDA graph, on the GPU at hand and where there is memory to keep it."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.commands.profiling import real_step
from outsize.job import Job
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from torch import nn

    from outsize.commands.planning import Situation

_LONG_S = 0.2  # a step that is predicted to take longer is not made of short kernels
_WORTH = 0.95  # of the time that it takes kernel by kernel
_NUM_TIMED = 8


@dataclass(frozen=True)
class Recorded:
    """What a step takes called kernel by kernel, and replayed."""

    called_s: float
    replayed_s: float
    peak_bytes: int  # with the recording


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
    if not _is_worth_a_trial(job, train_plan, where):
        return train_plan
    found = _recall_or_try(job, model, num_bands, train_plan, where, reporter)
    if found is None or found.replayed_s > _WORTH * found.called_s:
        return train_plan
    # a recording keeps its memory while a validation runs
    needed_bytes = found.peak_bytes + predict_plan.peak_bytes
    if needed_bytes > train_plan.limit_bytes:
        return train_plan
    times = f"{format_seconds(found.replayed_s)} in place of {format_seconds(found.called_s)} seen here"
    why = f"its kernels are shorter than the calls for them: recorded as one CUDA graph, {times}"
    why = f"{why}, and {format_bytes(found.peak_bytes)}"
    return replace(
        train_plan,
        graph=True,
        step_s=found.replayed_s,
        peak_bytes=max(train_plan.peak_bytes, found.peak_bytes),
        why=(*train_plan.why, why),
    )


def _is_worth_a_trial(job: Job, plan: Plan, where: Situation) -> bool:
    """Whether a step may be recorded at all: objects differ in number, and what saves memory calls the host."""
    if not job.train.graph or job.data.objects or where.device is None or where.kind != "cuda":
        return False
    return plan == plan.plain() and (plan.step_s is None or plan.step_s < _LONG_S)


def _recall_or_try(
    job: Job, model: nn.Module, num_bands: int, plan: Plan, where: Situation, reporter: Reporter
) -> Recorded | None:
    """Return what was seen before of the same step on the same device, or try it now; None where it cannot be."""
    from outsize.measure.bandwidth import cache_folder, fingerprint, remember
    from outsize.measure.profiled import name_of

    assert where.device is not None
    section, folder = job.train, cache_folder()
    names = [name_of(model), section.loss, section.optimizer, str(where.bf16), str(plan.fuse)]
    names += [str(section.batch), str(num_bands), str(section.tile_px), fingerprint(where.device)]
    key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    path = None if folder is None else folder / f"graph-{key}.json"
    found = None if path is None else _recall(path)
    if found is None:
        reporter.say("recording", "trying whether the step is faster as one CUDA graph; remembered")
        found = _try(job, model, num_bands, plan, where)
        if found is not None and path is not None:
            remember(path, asdict(found))
    return found


def _try(job: Job, model: nn.Module, num_bands: int, plan: Plan, where: Situation) -> Recorded | None:
    import torch

    from outsize.strategies.graphed import NUM_PLAIN

    device = where.device
    assert device is not None
    shape = (job.train.batch, num_bands, *job.train.window_px)
    before_bytes = torch.cuda.memory_allocated(device)
    seconds = {}
    told: list[str] = []
    try:
        with torch.random.fork_rng(devices=[device]):
            for graph in (False, True):
                torch.cuda.reset_peak_memory_stats(device)
                step = real_step(
                    job, model, shape, device, bf16=where.bf16, fuse=plan.fuse, graph=graph, tell=told.append
                )
                for _ in range(NUM_PLAIN + 1):
                    step.run()
                torch.cuda.synchronize(device)
                start_s = time.perf_counter()
                for _ in range(_NUM_TIMED):
                    step.run()
                torch.cuda.synchronize(device)
                seconds[graph] = (time.perf_counter() - start_s) / _NUM_TIMED
                del step
                gc.collect()  # the step and its optimizer know each other
        peak_bytes = torch.cuda.max_memory_allocated(device) - before_bytes
    except torch.OutOfMemoryError:
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return None if told else Recorded(seconds[False], seconds[True], peak_bytes)


def _recall(path: Path) -> Recorded | None:
    try:
        found = Recorded(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    sound = all(isinstance(each, int | float) and each > 0 for each in asdict(found).values())
    return found if sound else None
