"""A step on many GPUs: its own work, the wait for the slowest, for gradients and for samples.

    step = max(work x slowest of n + gradients that are not hidden, samples / what the input delivers)

Steps of a rank differ a little from each other (a clock that sinks, a host that is interrupted); n ranks that wait for
each other take as long as the slowest of them every time, which is more the more there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["ScaledStep", "scaled", "slowest_of", "split_input"]


@dataclass(frozen=True)
class ScaledStep:
    """Where the time of a step goes."""

    num_replicas: int
    work_s: float  # of one replica, by itself
    waits_s: float  # for the slowest
    gradients_s: float  # that backward does not hide
    input_s: float  # for samples, beyond all that

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.work_s + self.waits_s + self.gradients_s + self.input_s

    @property
    def efficiency(self) -> float:
        """What one replica alone would take, of what it takes."""
        return self.work_s / self.step_s

    def shares(self) -> dict[str, float]:
        """Return the share of each part."""
        parts = {
            "work": self.work_s,
            "waiting for the slowest": self.waits_s,
            "gradients": self.gradients_s,
            "waiting for samples": self.input_s,
        }
        return {name: part_s / self.step_s for name, part_s in parts.items()}


def slowest_of(num: int) -> float:
    """Return by how many standard deviations the slowest of so many is expected to lie above their mean (Blom)."""
    return 0.0 if num < 2 else NormalDist().inv_cdf((num - 0.375) / (num + 0.25))


def scaled(
    work_s: float, num: int, *, spread: float = 0.0, gradients_s: float = 0.0, input_s: float = 0.0
) -> ScaledStep:
    """Return a step of replicas; `spread` is the standard deviation of one's steps, as a share of them.

    `input_s` is how long the samples of the whole step take to come.
    """
    waits_s = work_s * spread * slowest_of(num)
    busy_s = work_s + waits_s + gradients_s
    return ScaledStep(num, work_s, waits_s, gradients_s, max(0.0, input_s - busy_s))


def split_input(one: tuple[int, float], other: tuple[int, float]) -> tuple[float, float]:
    """Return what a sample takes in series and in parallel, from seconds per sample on two numbers of GPUs.

    One process that reads, splits and joins works in series; what the GPUs do is divided among them:

        seconds per sample on n = series + parallel / n
    """
    (num, num_s), (many, many_s) = one, other
    parallel_s = (num_s - many_s) / (1 / num - 1 / many)
    return num_s - parallel_s / num, parallel_s
