"""What to ask a cluster or a cloud for, so that a planned job runs to its end."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from outsize.plan.facts import Facts
from outsize.plan.machines import CONTEXT_BYTES
from outsize.plan.plan import Plan
from outsize.units import format_bytes, format_count

_GIB = 2**30
# A process that has loaded torch and its libraries; each process that prepares samples holds about half of that.
_PROCESS_BYTES = 3 * _GIB
_WORKER_BYTES = 3 * _GIB // 2
_PICTURES_BYTES = 2 * _GIB  # decoded pictures and blocks of scenes
# Queues kill what is late: a slower card than the one in the catalogue, and reading and writing beside the steps.
_SPARE_TIME = 1.3
# However short the training is: starting, reading all data once, compiling, one real step, writing at the end.
_AROUND_S = 600
_UNITS_S = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


@dataclass(frozen=True)
class Workload:
    """How much there is to do."""

    num_steps: int
    num_epochs: int
    epoch_samples: int  # that cover what is learnt from once, or as many as the job asks for
    batch: int
    validated_px: int  # in one epoch
    predicted_px: int
    bytes_per_px: int  # that a prediction leaves: classes, confidence, probabilities
    num_workers: int
    batch_bytes: int  # of one GPU, as it comes from its workers, each of which makes two ahead


@dataclass(frozen=True)
class HostMemory:
    """What host memory is for, over all GPUs."""

    num_processes: int  # one for each GPU, and those that prepare its samples
    processes_bytes: int
    pictures_bytes: int
    kept_bytes: int  # by the plan: tensors that are moved there, weights that stay there
    steps_bytes: int  # of training and prediction, where a CPU computes them

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.processes_bytes + self.pictures_bytes + self.kept_bytes + self.steps_bytes

    def text(self) -> str:
        """Say it for a person, without what is not there."""
        processes = "1 process" if self.num_processes == 1 else f"{self.num_processes} processes"
        parts = {
            f"for {processes}": self.processes_bytes,
            "for decoded pictures": self.pictures_bytes,
            "that the plan keeps there": self.kept_bytes,
            "for the steps themselves": self.steps_bytes,
        }
        return ", ".join(
            f"{format_bytes(size_bytes)} {what}" for what, size_bytes in parts.items() if size_bytes
        )


@dataclass(frozen=True)
class Request:
    """Numbers for a job script; hours is None where the machine's rates are not known."""

    gpus: int  # 0: the plan is for a CPU
    gpu_gib: int
    machine: str  # that the plan was made for
    host_gib: int
    host: HostMemory
    disk_gib: int
    hours: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Say it for a person, and once more in the words of a job script."""
        hours = "time not known" if self.hours is None else _hours_or_minutes(self.hours)
        rest = f"{self.host_gib} GiB of host memory, {self.disk_gib} GiB of disk, {hours}"
        ask = [f"ask for: {self._cards()}{rest}", f"  host memory: {self.host.text()}"]
        if self.hours is not None:
            whole, minutes = divmod(math.ceil(self.hours * 60), 60)
            # no type of card: each cluster has names of its own for them
            cards = f"--gres=gpu:{self.gpus} " if self.gpus else ""
            ask.append(f"  {cards}--mem={self.host_gib}G --time={whole:02d}:{minutes:02d}:00")
        return ask

    def _cards(self) -> str:
        if self.gpus == 0:
            return ""
        each = " each" if self.gpus > 1 else ""
        return (
            f"{format_count(self.gpus, 'GPU')} with {self.gpu_gib} GiB{each} (planned for {self.machine}), "
        )


@dataclass(frozen=True)
class Course:
    """How long a training takes; None where the machine's rates are not known."""

    num_steps: int
    num_epochs: int
    total_s: float | None  # of all steps and validations
    max_s: float | None = None  # by when the job ends it
    taken_samples: int = 0  # in an epoch, of which all steps have a whole batch
    wanted_samples: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def text(self) -> str:
        """Say it for a person."""
        steps = f"{format_count(self.num_steps, 'step')} in {format_count(self.num_epochs, 'epoch')}"
        if self.taken_samples != self.wanted_samples:
            steps += f" of {self.taken_samples:,} samples (whole batches, where {self.wanted_samples:,} are wanted)"
        if self.total_s is None:
            return f"{steps}: time not known"
        about = f"{steps}: about {_rough(self.total_s)} with validations"
        if self.max_s is None or self.max_s >= self.total_s:
            return about
        return f"{about}, ended by train.max_minutes after {self.max_s / 60:g} min"


def course_of(train: Plan, facts: Facts, work: Workload, max_minutes: float | None = None) -> Course:
    """Return how long a training takes with its validations, as predicted and with nothing to spare."""
    max_s = None if max_minutes is None else 60 * max_minutes
    return Course(
        work.num_steps,
        work.num_epochs,
        _training_s(train, facts, work),
        max_s,
        taken_samples=work.batch * work.num_steps // work.num_epochs,
        wanted_samples=work.epoch_samples,
    )


def make_request(
    train: Plan, predict: Plan, facts: Facts, work: Workload, *, num_gpus: int, usable: float
) -> Request:
    """Add up memory, disk and time of a training with its validations, and of the predictions after it."""
    device_bytes = max(_device_bytes(plan, usable) for plan in (train, predict))
    num_trainings = max(1, num_gpus)
    # a CPU's samples are prepared by threads of the one process, which keep no pictures
    num_beside = work.num_workers if num_gpus else 0
    ahead_bytes = 2 * work.batch_bytes * work.num_workers
    host = HostMemory(
        num_processes=num_trainings * (1 + num_beside),
        processes_bytes=num_trainings * (_PROCESS_BYTES + _WORKER_BYTES * num_beside + ahead_bytes),
        pictures_bytes=_PICTURES_BYTES if num_gpus else 0,
        kept_bytes=num_trainings * train.hosted_bytes,
        steps_bytes=0 if num_gpus else math.ceil(device_bytes),
    )
    state_bytes = facts.train.weights_bytes if facts.train is not None else 4 * facts.window.weights_bytes
    # the sparse file and the COG made from it lie side by side for a while; checkpoints: best, last, state, and a spare
    disk_bytes = 2 * work.predicted_px * work.bytes_per_px + 4 * state_bytes
    return Request(
        gpus=num_gpus,
        gpu_gib=math.ceil((device_bytes + CONTEXT_BYTES) / _GIB) if num_gpus else 0,
        machine=facts.machine.name,
        host_gib=math.ceil(host.total_bytes / _GIB),
        host=host,
        disk_gib=max(1, math.ceil(disk_bytes / _GIB)),
        hours=_hours(train, facts, work),
    )


def _device_bytes(plan: Plan, usable: float) -> float:
    """Return what a device must have free: memory by pages has no gaps, so such a plan fills its limit and no share."""
    return plan.limit_bytes if plan.paged else plan.peak_bytes / usable


def _hours(train: Plan, facts: Facts, work: Workload) -> float | None:
    training_s, px_s = _training_s(train, facts, work), facts.window.predict_s_per_px
    if training_s is None or px_s is None:
        return None
    return (_AROUND_S + _SPARE_TIME * (training_s + work.predicted_px * px_s)) / 3600


def _training_s(train: Plan, facts: Facts, work: Workload) -> float | None:
    px_s = facts.window.predict_s_per_px
    if train.step_s is None or px_s is None:
        return None
    return work.num_steps * train.step_s + work.num_epochs * work.validated_px * px_s


def _hours_or_minutes(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{math.ceil(60 * hours)} min"


def _rough(seconds: float) -> str:
    """Write a time in two digits: a prediction has no more."""
    unit, unit_s = next((each for each in _UNITS_S if seconds >= each[1]), _UNITS_S[-1])
    return f"{float(f'{seconds / unit_s:.2g}'):.10g} {unit}"
