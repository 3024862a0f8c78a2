"""What a way to run a training step is: the task that it is for, what it needs, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outsize.plan.cost import StepCost
from outsize.plan.plan import Compile, Fuse
from outsize.plan.search import Link, Mixture
from outsize.plan.step import StepFacts
from outsize.plan.times import MOVED_CALLS, OpSeconds, host_calls, remade_calls, together
from outsize.tiles.halo import Halo
from outsize.units import Size, format_bytes, format_count, num_px_of

StepOf = Callable[[int, Size], StepFacts]  # samples, size of the window -> facts
BlocksOf = Callable[[int, Size, tuple[str, ...]], StepFacts]  # and the blocks that are run again


@dataclass(frozen=True)
class Compiled:
    """One way to compile a model that was tried: nobody can look into compiled code, so it is compared as a whole.

    Both shares hold for other sizes: that of memory foretells the 24 compiled steps of four networks that were measured
    (benchmarks/results/2026-11-16-h200-plan-error.json) from one of their sizes, to 0.8 %.
    """

    setting: Compile
    time_share: float  # of the plain step's on the device
    host_s: float  # to call it, whatever the batch
    memory_share: float = (
        1.0  # of what the plain step takes beyond weights, state and batch; 1 on a CPU: not seen
    )

    def peak_bytes(self, plain: StepCost) -> int:
        """Return what a step holds at its fullest that is compiled this way."""
        return plain.lasting_bytes + round(self.memory_share * (plain.peak_bytes() - plain.lasting_bytes))


@dataclass(frozen=True)
class StepRequest:
    """A training step that is asked for, and what the model and the loss allow to be done to it."""

    batch: int
    side_px: Size
    step_of: StepOf
    op_s: OpSeconds  # of an operation's kernels
    halo: Halo
    across_samples: str | None = None  # what makes samples depend on each other, as a text; None: nothing
    # why the answer of GPUs that share the batch is not that of one GPU, however each runs its part; None: it is
    spread: str | None = None
    across_pixels: str | None = None  # what makes a tile differ from the whole, besides the halo's obstacles
    again_s: OpSeconds | None = None  # of an operation whose result is recomputed; None: as the first time
    host_op_s: float = 0.0  # for the host to call a small operation
    overlaps: bool = True  # host and device work at the same time
    records: bool = (
        False  # a step that gives nothing up is recorded as a CUDA graph where the host would be behind
    )
    blocks_of: BlocksOf | None = None  # None: what running blocks again needs is only estimated
    never: frozenset[str] = frozenset()  # modules that must not run again, nor what they lie in
    link: Link | None = None  # to host memory; None: nothing is moved there
    host_bytes: float = math.inf  # that may lie there
    held_bytes: float = math.inf  # that the device's allocator may hold for tensors, with gaps between them
    pages: bool = False  # a recorded step may have its memory by pages, and then there are no gaps
    weights: Mapping[str, int] = field(default_factory=dict)  # bytes by name of those that may be on the host
    compiled: tuple[Compiled, ...] = ()  # ways to compile it that may be taken
    fuse: Fuse | None = None  # what `step_of` has fused; compiled blocks fuse theirs themselves

    def why_tiles_are_inexact(self) -> str | None:
        """Say why the answer in tiles is not that of the whole; None: it is."""
        obstacles = [str(each) for each in self.halo.obstacles[:1]]
        return next(iter((*obstacles, *filter(None, (self.across_pixels, self.across_samples)))), None)


@dataclass(frozen=True)
class Way:
    """One way to run the step: what it needs, how long it takes, and the settings of the plan that does it."""

    name: str
    peak_bytes: int
    step_s: float
    settings: dict[str, Any] = field(default_factory=dict)
    inexact: str | None = None  # why its answer is not that of the plain step
    confirm: Callable[[], Way] | None = None  # looks closely; None: that was done
    fails: str | None = None  # why the model does not run this way
    room_bytes: float | None = None  # that it may take; None: as much as others

    @property
    def needs(self) -> str:
        """Say what it needs."""
        room = "" if self.room_bytes is None else f", may fill {format_bytes(self.room_bytes)}"
        return f"needs {format_bytes(self.peak_bytes)}{room}"

    def fits(self, budget_bytes: float) -> bool:
        """Say whether it needs no more than it may take."""
        return self.peak_bytes <= (budget_bytes if self.room_bytes is None else self.room_bytes)


@dataclass(frozen=True)
class StepPart:
    """What a step runs several times: of so many samples, in windows of one size."""

    prefix: str
    num_runs: int
    num_samples: int
    side_px: Size
    settings: dict[str, Any] = field(default_factory=dict)
    inexact: str | None = None

    def waiting_bytes(self, task: StepRequest, cost: StepCost) -> int:
        """Return what the rest of the batch takes on the device while this part of it runs."""
        num_px, all_px = self.num_samples * num_px_of(self.side_px), task.batch * num_px_of(task.side_px)
        return int(cost.batch_bytes * max(0.0, all_px / max(1, num_px) - 1))


@dataclass(frozen=True)
class Again:
    """What is done a second time in each run: kernels, and calls of the host."""

    device_s: float = 0.0
    num_calls: float = 0.0


def seconds_of(task: StepRequest, num_runs: int, cost: StepCost, again: Again | None = None) -> float:
    """Return the time of a step of several runs; the optimizer, after all of them, comes once."""
    again = again or Again()
    end = next((op.index + 1 for op in reversed(cost.facts.ops) if op.backward), len(cost.facts.ops))
    runs, once = cost.facts.ops[:end], cost.facts.ops[end:]
    device_s = num_runs * (sum(map(task.op_s, runs)) + again.device_s) + sum(map(task.op_s, once))
    num_calls = num_runs * (sum(map(host_calls, runs)) + again.num_calls) + sum(map(host_calls, once))
    return together(device_s, num_calls * task.host_op_s, overlaps=task.overlaps)


def of_mix(found: Mixture) -> Again:
    """Return what a mix does a second time."""
    num_calls = sum(remade_calls(recipe.ops) for recipe in found.recipes)
    num_moved = 0 if found.swap is None else len(found.swap.moved)
    return Again(found.extra_s, num_calls + MOVED_CALLS * num_moved)


def in_words(found: Mixture) -> str:
    """Say in words what a mix does."""
    parts = []
    if found.swap is not None:
        moved_bytes = sum(each.size_bytes for each in found.swap.moved)
        parts.append(f"move {format_bytes(moved_bytes)} to host memory")
    if found.recipes:
        num_costly = len({call for recipe in found.recipes for call in recipe.costly})
        parts.append(
            f"recompute {format_count(len(found.recipes), 'tensor')}"
            + f", {format_count(num_costly, 'costly operation')}" * (num_costly > 0)
        )
    return " and ".join(parts)
