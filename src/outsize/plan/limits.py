"""The memory that a job may use, and the share of it that a plan may fill."""

from __future__ import annotations

import math

from outsize.errors import PlanError, explain
from outsize.job import LimitsSection
from outsize.plan.facts import Machine
from outsize.units import format_bytes

# Share of the limit that a plan may fill: the rest is for what is not counted (convolution workspace, allocator gaps).
# A real step on the device tells it better.
USABLE = {"cpu": 0.7, "cuda": 0.85}


def usable_bytes(machine: Machine, limits: LimitsSection) -> float:
    """Return what a plan may fill: the usable share of the limit."""
    return usable_share(machine) * limit_of(machine, limits)


def usable_share(machine: Machine) -> float:
    """Return the share of a limit that a plan may fill: as seen in a real step, or what is usual."""
    usual = USABLE[machine.kind]
    return usual if machine.usable_share is None else machine.usable_share


def limit_of(machine: Machine, limits: LimitsSection) -> int:
    """Return the memory a plan may use: what the job says, as far as it is free, or what the device has free."""
    asked: int | None = getattr(limits, machine.limit_key)
    if asked is not None and asked > machine.memory_bytes:
        raise PlanError(
            explain(
                f"limits.{machine.limit_key} is more than {machine.spoken} has",
                format_bytes(asked),
                f"at most {format_bytes(machine.memory_bytes)}",
                "lower it, or leave it out to use what is free",
            )
        )
    return machine.free_bytes if asked is None else min(asked, machine.free_bytes)


def limit_for(peak_bytes: float, usable: float) -> str:
    """Return the limit to set for a peak: a plan fills a share of it only."""
    return f'"{math.ceil(peak_bytes / usable / 2**20)}MiB"'
