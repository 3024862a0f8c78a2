"""What to ask a cluster or a cloud for, so that a planned job runs to its end."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from outsize.plan.facts import Facts
from outsize.plan.machines import CONTEXT_BYTES
from outsize.plan.plan import Plan
from outsize.units import format_count, format_seconds

_GIB = 2**30
# A process that has loaded torch and its libraries; each process that prepares samples holds about half of that.
_PROCESS_BYTES = 3 * _GIB
_WORKER_BYTES = 3 * _GIB // 2
_PICTURES_BYTES = 2 * _GIB  # decoded pictures and blocks of scenes
_SPARE_TIME = (
    1.3  # queues kill what is late: reading, writing and a slower card than the one in the catalogue
)


@dataclass(frozen=True)
class Work:
    """How much there is to do."""

    num_steps: int
    num_epochs: int
    validated_px: int  # in one epoch
    predicted_px: int
    bytes_per_px: int  # that a prediction leaves: classes, confidence, probabilities
    num_workers: int
    batch_bytes: int  # as it comes from the workers, each of which makes two ahead


@dataclass(frozen=True)
class Request:
    """Numbers for a job script; hours is None where the machine's rates are not known."""

    gpus: int  # 0: the plan is for a CPU
    gpu_gib: int
    host_gib: int
    disk_gib: int
    hours: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Say it for a person, and once more in the words of a job script."""
        hours = "not known" if self.hours is None else _hours_or_minutes(self.hours)
        cards = f"{format_count(self.gpus, 'GPU')} with {self.gpu_gib} GiB each, " if self.gpus else ""
        rest = f"{self.host_gib} GiB of host memory, {self.disk_gib} GiB of disk, {hours}"
        ask = [f"ask for: {cards}{rest}"]
        if self.hours is not None:
            whole, minutes = divmod(math.ceil(self.hours * 60), 60)
            cards = f"--gres=gpu:{self.gpus} " if self.gpus else ""
            ask.append(f"  {cards}--mem={self.host_gib}G --time={whole:02d}:{minutes:02d}:00")
        return ask


@dataclass(frozen=True)
class Course:
    """How long a training takes; None where the machine's rates are not known."""

    num_steps: int
    num_epochs: int
    total_s: float | None  # of all steps and validations
    max_s: float | None = None  # by when the job ends it

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def text(self) -> str:
        """Say it for a person."""
        steps = f"{format_count(self.num_steps, 'step')} in {format_count(self.num_epochs, 'epoch')}"
        if self.total_s is None:
            return f"{steps}: time not known"
        about = f"{steps}: about {_rough(self.total_s)} with validations"
        if self.max_s is None or self.max_s >= self.total_s:
            return about
        return f"{about}, ended by train.max_minutes after {_rough(self.max_s)}"


def course_of(train: Plan, facts: Facts, work: Work, max_minutes: float | None = None) -> Course:
    """Return how long a training takes with its validations, as predicted and with nothing to spare."""
    max_s = None if max_minutes is None else 60 * max_minutes
    return Course(work.num_steps, work.num_epochs, _training_s(train, facts, work), max_s)


def make_request(
    train: Plan, predict: Plan, facts: Facts, work: Work, *, num_gpus: int, usable: float
) -> Request:
    """Add up memory, disk and time of a training with its validations, and of the predictions after it."""
    device_bytes = max(_device_bytes(plan, usable) for plan in (train, predict))
    worker_bytes = _WORKER_BYTES + 2 * work.batch_bytes
    process_bytes = _PROCESS_BYTES + worker_bytes * work.num_workers + train.hosted_bytes
    host_bytes: float = max(1, num_gpus) * process_bytes + _PICTURES_BYTES
    if num_gpus == 0:
        host_bytes += device_bytes
    state_bytes = facts.train.weights_bytes if facts.train is not None else 4 * facts.window.weights_bytes
    # the sparse file and the COG made from it lie side by side for a while; checkpoints: best, last, state, and a spare
    disk_bytes = 2 * work.predicted_px * work.bytes_per_px + 4 * state_bytes
    return Request(
        gpus=num_gpus,
        gpu_gib=math.ceil((device_bytes + CONTEXT_BYTES) / _GIB) if num_gpus else 0,
        host_gib=math.ceil(host_bytes / _GIB),
        disk_gib=max(1, math.ceil(disk_bytes / _GIB)),
        hours=_hours(train, facts, work),
    )


def _device_bytes(plan: Plan, usable: float) -> float:
    """Return what a device must have free: memory by pages has no gaps, so such a plan fills its limit and no share."""
    return plan.limit_bytes if plan.paged else plan.peak_bytes / usable


def _hours(train: Plan, facts: Facts, work: Work) -> float | None:
    training_s, px_s = _training_s(train, facts, work), facts.window.predict_s_per_px
    if training_s is None or px_s is None:
        return None
    return _SPARE_TIME * (training_s + work.predicted_px * px_s) / 3600


def _training_s(train: Plan, facts: Facts, work: Work) -> float | None:
    px_s = facts.window.predict_s_per_px
    if train.step_s is None or px_s is None:
        return None
    return work.num_steps * train.step_s + work.num_epochs * work.validated_px * px_s


def _hours_or_minutes(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{math.ceil(60 * hours)} min"


def _rough(seconds: float) -> str:
    """Write a time without digits that a prediction does not have."""
    if 60 <= seconds < 3600:
        return f"{round(seconds / 60)} min"
    return f"{seconds:.0f} s" if 1 <= seconds < 60 else format_seconds(seconds)
