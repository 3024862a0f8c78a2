"""Where a job is to run: a machine, here or named, and what may be taken of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from outsize.data.feeding import num_cores
from outsize.errors import JobError, explain
from outsize.job import Job
from outsize.plan.facts import Machine
from outsize.plan.links import LinkSpec, find_link, measured_link
from outsize.plan.machines import find_machine
from outsize.plan.plan import Fuse
from outsize.plan.times import Clock, Learnt, Rates

if TYPE_CHECKING:
    import torch

    from outsize.plan.way import Compiled


# of processes on a CPU: seconds of a message, bytes per second (benchmarks/results/2026-11-19-cpu-replicas.md)
_GLOO = 7e-4, 0.5e9
_USUAL_LINK = "pcie4"

SPREADS = ("auto", "whole", "exchange", "recompute")  # how pictures may lie on ranks


@dataclass(frozen=True)
class Sharing:
    """How ranks share a batch, as far as somebody asks for it."""

    local_norm: bool = False  # each norms by its own samples alone
    spread: str = SPREADS[0]
    stages: int | None = None  # that the model is cut into; None: none, unless nothing else fits
    shard: bool = False  # the optimizer's state, also where all of it fits

    def __post_init__(self) -> None:
        """Refuse a way that is not known."""
        if self.spread not in SPREADS:
            raise JobError(
                explain("--spread is not known", self.spread, f"one of {', '.join(SPREADS)}", "correct it")
            )
        if self.shard and (self.stages or 1) > 1:
            need, remedy = (
                "one of them",
                "leave --shard out: a stage keeps the state of its own weights alone",
            )
            raise JobError(explain("--shard does not go with stages", self.stages, need, remedy))


AS_USUAL = Sharing()


@dataclass(frozen=True)
class Ranks:
    """How many processes train together, and what the least of them has."""

    num: int = 1
    num_local: int = 1  # on one machine
    num_on_device: int = 1
    sharing: Sharing = AS_USUAL
    least: Machine | None = None
    link: LinkSpec | None = None  # between them, as measured; None: as usual

    def share_of(self, job: Job) -> Job:
        """Return a job with what one of the processes of a machine may take of its limits and cores."""
        if self.num_local == 1:
            return job
        limits, section = job.limits, job.train
        host_bytes = None if limits.host_memory is None else max(1, limits.host_memory // self.num_local)
        workers = min(section.workers, max(1, num_cores() // self.num_local))
        return job.model_copy(
            update={
                "limits": limits.model_copy(update={"host_memory": host_bytes}),
                "train": section.model_copy(update={"workers": workers}),
            }
        )


ONE_RANK = Ranks()


@dataclass(frozen=True)
class Situation:
    """Where a job is to run."""

    machine: Machine
    rates: Rates
    bf16: bool
    num_gpus: int = 1
    num_local: int = 1  # of them on one machine, whose host memory they share
    sharing: Sharing = AS_USUAL
    link: LinkSpec | None = None  # between ranks, as measured
    device: torch.device | None = None  # None: the machine is not here
    learnt: Learnt | None = None  # by a real step
    compiled: tuple[Compiled, ...] = ()  # ways to compile that were tried, where the job allows it
    fuse: Fuse | None = None  # layers that are, where the job and the machine allow it
    pages: bool = True  # recorded steps may have their memory by pages, as far as is known
    most_objects: int = 0  # in a training window, where labels are objects
    note: str = ""  # what times are those of, where no step of the job's own size was run

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """What computes."""
        return "cpu" if self.machine.device == "cpu" else "cuda"

    @property
    def tf32(self) -> bool:
        """Whether float32 is multiplied in TF32, as torch does in convolutions where the GPU can."""
        return self.rates.tf32_flops_per_s is not None

    @property
    def lacks_bf16(self) -> bool:
        """Whether bfloat16 is asked of a GPU that has no units for it: its kernels are float32's at best."""
        return self.bf16 and self.kind == "cuda" and self.rates.bf16_flops_per_s is None

    @property
    def text(self) -> str:
        """Say which machine it is, and how it multiplies."""
        precision = "bfloat16" if self.bf16 else "TF32" if self.tf32 else "float32"
        several = "" if self.num_gpus == 1 else f"{self.num_gpus} x "
        if self.kind == "cpu" and self.num_gpus > 1:
            several = f"{self.num_gpus} processes on "
        name = "the CPU of this machine" if self.kind == "cpu" else self.machine.name
        return f"{several}{name}, {precision}"

    def among(self, ranks: Ranks) -> Situation:
        """Return the same for several ranks that share a batch: each is given what the least of them has."""
        machine = ranks.least or self.machine
        machine = replace(
            machine,
            free_bytes=machine.free_bytes // (ranks.num_local if self.kind == "cpu" else ranks.num_on_device),
            host_free_bytes=machine.host_free_bytes // ranks.num_local,
        )
        return replace(
            self,
            machine=machine,
            num_gpus=ranks.num,
            num_local=ranks.num_local,
            sharing=ranks.sharing,
            link=ranks.link,
        )

    @property
    def between(self) -> LinkSpec:
        """What is between ranks that share a batch: as measured, or as is usual."""
        if self.link is not None:
            return self.link
        return measured_link(*_GLOO) if self.kind == "cpu" else find_link(_USUAL_LINK)

    @property
    def clock(self) -> Clock:
        """What tells the times of a training step there."""
        clock = Clock(self.rates, tf32=self.tf32, overlaps=self.kind == "cuda")
        return clock if self.learnt is None else clock.taught(self.learnt)


def situation_here(device: torch.device, precision: str, limit_bytes: int | None = None) -> Situation:
    """Look at the machine at hand; its rates are measured the first time, within the limit for a GPU."""
    from outsize.infer.ready import wants_bf16
    from outsize.measure.machine import look_at_machine, machine_rates

    bf16 = wants_bf16(precision, device)
    room_bytes = math.inf if limit_bytes is None else limit_bytes
    rates = machine_rates(device, room_bytes=room_bytes)
    return Situation(look_at_machine(device), rates, bf16, device=device)


def situation_named(name: str, num_gpus: int, precision: str) -> Situation:
    """Look a machine up that need not be here."""
    spec = find_machine(name)
    has_bf16 = spec.rates.bf16_flops_per_s is not None
    bf16 = precision == "bf16" or (precision == "auto" and has_bf16)
    return Situation(spec.as_machine(num_gpus), spec.rates, bf16, num_gpus)


def share_of(batch: int, num_gpus: int) -> int:
    """Return the most samples of a batch that any of several GPUs has; of more GPUs than samples several share one."""
    divisors = (each for each in range(1, num_gpus + 1) if num_gpus % each == 0)
    num_replicas = next(num_gpus // each for each in divisors if num_gpus // each <= batch)
    return -(-batch // num_replicas)


def may_record(job: Job, where: Situation) -> bool:
    """Whether steps may be recorded as CUDA graphs; not where shapes differ from step to step, or ranks meet in one."""
    from outsize.tasks import task_of

    asked = job.train.graph and where.kind == "cuda" and where.num_gpus == 1
    return asked and task_of(job.task).records


def may_page(where: Situation) -> bool:
    """Whether recorded steps may have their memory by pages."""
    if where.device is None:
        return where.pages
    from outsize.strategies.cudagraph import why_not_paged

    return where.pages and why_not_paged() is None


def host_bytes(limit_bytes: int | None, where: Situation) -> float:
    """Return what one GPU may lock of its host's memory; of a machine that is not here, what the catalogue knows."""
    if where.device is not None:
        from outsize.measure.machine import host_room_bytes

        return host_room_bytes(limit_bytes, where.num_local)
    known_bytes = where.machine.host_free_bytes or math.inf  # a GPU by itself: the host is not known
    return known_bytes if limit_bytes is None else min(limit_bytes, known_bytes)
