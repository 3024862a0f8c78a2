"""Why a training step takes as long as it does, in one sentence, and the change that would help: numbers in, words out.

step | waiting for data | copies | compute | swap stalls | communication | gaps between launches |
       each part names one change; the one that saves most is the verdict, if it saves anything worth a word
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

LEAST_SHARE = 0.08  # of a step: what saves less is no reason
_ON_DISK = 0.5  # share of making a batch that is computing, below which it waits for files
_SLOW_LINK = 0.6  # share of what a link can do, below which it is slow
COMPUTE_BOUND = "compute-bound"


@dataclass(frozen=True)
class Parts:
    """Where a step's time goes: seconds that nothing else covers."""

    step_s: float
    waiting_s: float = 0.0  # for the next batch
    copying_s: float = 0.0  # of the batch to the device, and of results back
    compute_s: float = 0.0
    stall_s: float = 0.0  # for tensors that were swapped
    communication_s: float = 0.0
    gap_s: float = 0.0  # the device has nothing to do because the host has not called it yet

    def shares(self) -> dict[str, float]:
        """Return each part of the step, by the name that a person reads."""
        names = ("waiting for data", "copies", "compute", "swap stalls", "communication", "launch gaps")
        parts = (
            self.waiting_s,
            self.copying_s,
            self.compute_s,
            self.stall_s,
            self.communication_s,
            self.gap_s,
        )
        return {name: part / self.step_s for name, part in zip(names, parts, strict=True)}


@dataclass(frozen=True)
class Around:
    """What there is around a step that could be changed."""

    device: str  # "GPU" or "CPU", as a sentence says it
    batch: int
    workers: int
    cores: int  # that this process may use
    making_s: float  # one batch, by one worker
    making_cpu_s: float  # of it, computing
    cores_s: float = (
        0.0  # that cores are busy for in a step: with its batch, and on a CPU with the step itself
    )
    twice_s: float | None = (
        None  # a step of twice the batch, waits apart; None: it does not fit, or is not known
    )
    link_share: float | None = None  # of what the link can do, that copies reach
    records: bool = False  # the step could be captured as a CUDA graph, and is not


@dataclass(frozen=True)
class Verdict:
    """The cause, said in a sentence with the change, and what that would save."""

    cause: str
    sentence: str
    change: str
    gain: float  # share of the time per sample that is predicted to go

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def judge(parts: Parts, around: Around) -> Verdict:
    """Return the cause whose change would save most; "compute-bound" where none is worth it."""
    found = [each for each in _causes(parts, around) if each.gain >= LEAST_SHARE]
    if found:
        return max(found, key=lambda each: each.gain)
    share = parts.compute_s / parts.step_s
    sentence = f"the {around.device} computes for {share:.0%} of the step: {COMPUTE_BOUND}"
    change = "only less work, lower precision or a faster device makes it shorter"
    return Verdict(COMPUTE_BOUND, f"{sentence}, {change}", change, 0.0)


def _causes(parts: Parts, around: Around) -> Iterator[Verdict]:
    yield _data(parts, around)
    waits = f"the {around.device} waits"
    share = parts.copying_s / parts.step_s
    slow = around.link_share is not None and around.link_share < _SLOW_LINK
    rate = (
        "" if around.link_share is None else f", which run at {around.link_share:.0%} of what the link can do"
    )
    change = "find what else uses the link" if slow else "send less: a smaller window, or fewer bands"
    yield _verdict(
        "slow link", f"{waits} {share:.0%} of the step for copies{rate}", change, share, at_best=True
    )
    share = parts.stall_s / parts.step_s
    change = "raise limits.gpu_memory, or take a smaller train.batch, so that less is swapped"
    yield _verdict(
        "swap stall", f"{waits} {share:.0%} of the step for swapped tensors", change, share, at_best=True
    )
    share = parts.communication_s / parts.step_s
    change = "take a larger train.batch for each rank, or a faster link between them"
    yield _verdict(
        "communication", f"{waits} {share:.0%} of the step for other ranks", change, share, at_best=True
    )
    yield from _launches(parts, around)


def _data(parts: Parts, around: Around) -> Verdict:
    """Judge the wait for data: by workers, by files, or by what is made of them."""
    busy_s = max(parts.step_s - parts.waiting_s, 1e-9)
    waits = f"the {around.device} waits {parts.waiting_s / parts.step_s:.0%} of the step for data"

    def gain(made_s: float) -> float:
        """What is saved where a batch comes every so many seconds; no step is shorter than its cores can do it."""
        return max(0.0, 1 - max(busy_s, made_s, around.cores_s / around.cores) / parts.step_s)

    if around.making_cpu_s < _ON_DISK * around.making_s:
        share = 1 - around.making_cpu_s / around.making_s
        told = f"{waits}, and making a batch waits {share:.0%} of its time for files"
        change = "move the data to a faster disk"
        return _verdict("slow reader", told, change, gain(around.making_cpu_s / around.workers))
    wanted = min(math.ceil(around.making_s / busy_s), around.cores)
    more = gain(around.making_s / wanted)
    if wanted > around.workers and more >= LEAST_SHARE:
        change = f"raise train.workers from {around.workers} to {wanted}"
        return _verdict("too few workers", waits, change, more)
    told = f"{waits}, and all {around.cores} cores are busy"
    change = "take fewer augmentations, or a machine with more cores"
    return _verdict("slow preparation", told, change, parts.waiting_s / parts.step_s, at_best=True)


def _launches(parts: Parts, around: Around) -> Iterator[Verdict]:
    """Judge a device that is not filled: the host is late, or kernels are too small for it."""
    share = parts.gap_s / parts.step_s
    busy_s = parts.step_s - parts.waiting_s
    larger = 0.0 if around.twice_s is None else (busy_s - around.twice_s / 2) / parts.step_s
    idle = (
        f"the {around.device} is idle for {share:.0%} of the step, because the host calls kernels too slowly"
    )
    twice = 2 * around.batch
    if around.records:
        yield _verdict("launch-bound", idle, "capture the step: train.graph = true", share)
    elif larger >= LEAST_SHARE:
        change = f"it cannot be captured; raise train.batch from {around.batch} to {twice}"
        yield _verdict("launch-bound", idle, change, min(share, larger))
    else:
        yield _verdict("launch-bound", idle, "fewer and larger operations in the model", share, at_best=True)
    told = f"twice the batch takes less than twice the time, for {around.batch} samples do not fill the {around.device}"
    change = f"raise train.batch from {around.batch} to {twice}"
    if share < LEAST_SHARE:
        yield _verdict("batch too small", told, change, larger)


def _verdict(cause: str, told: str, change: str, gain: float, *, at_best: bool = False) -> Verdict:
    text = f"{told}: {change}; time per sample {'at best ' if at_best else ''}{-gain:+.0%} predicted"
    return Verdict(cause, text, change, gain)
