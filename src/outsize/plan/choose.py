"""Chooses within a memory limit: tiles and their batch for prediction, the way to run a step for training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from outsize.errors import PlanError, explain
from outsize.job import LimitsSection
from outsize.plan.facts import Facts, Machine
from outsize.plan.ladder import choose
from outsize.plan.plan import Plan, Rejected, Tiling
from outsize.plan.way import Task, Way
from outsize.tiles.halo import Halo, Obstacle
from outsize.units import format_bytes, format_size

# Cores tried, largest first: redundancy (T / core)^2 falls with the core.
_CORES_PX = (2048, 1024, 512, 256, 128, 64, 32, 16)
_LARGEST_CORE_PX = {
    "cpu": 1024,
    "cuda": 2048,
}  # beyond, redundancy gains under 5 % and latency of the first tile grows
_ENOUGH_PX = {
    "cpu": 1 << 20,
    "cuda": 1 << 23,
}  # pixels at once that keep the device busy; more only costs memory
# Share of the limit that a plan may fill: the rest is for what is not counted (convolution workspace, allocator gaps).
# A real step on the device tells it better.
USABLE = {"cpu": 0.7, "cuda": 0.85}


def choose_predict(
    known: Facts,
    limits: LimitsSection,
    scene_px: tuple[int, int],
    *,
    resident_bytes: int = 0,
    any_size: bool = True,
) -> Plan:
    """Return the largest core that fits, and as many tiles at once as the device can use.

    `resident_bytes` are there besides the weights: the optimizer's state during a training. A model that looks at the
    whole picture is exact where a window is one, if it takes pictures of `any_size`.
    """
    kind, facts = known.machine.device.partition(":")[0], known.window
    lasting_bytes = facts.weights_bytes + facts.fixed_bytes + resident_bytes
    limit_bytes = limit_of(known.machine, limits)
    usable = usable_share(known.machine)
    budget_bytes = usable * limit_bytes
    cuts = _cuts(known.halo, limits)
    rejected: list[Rejected] = []
    candidates = _candidates(kind, limits.tile_px, known.halo.stride_px, scene_px)
    for core_px in candidates:
        is_whole = any_size and bool(known.halo.obstacles) and core_px >= max(scene_px)
        if cuts.refused is not None and not is_whole:
            continue
        tiling = _whole(core_px) if is_whole else cuts.tiling_of(core_px)
        window_px = window_pixels(tiling, scene_px)
        one_bytes = facts.predict_bytes_per_px * window_px
        if lasting_bytes + one_bytes > budget_bytes:
            rejected.append(_too_large(f"core {core_px} px", lasting_bytes + one_bytes, budget_bytes))
            continue
        fits = int((budget_bytes - lasting_bytes) // one_bytes)
        batch = max(1, min(fits, _ENOUGH_PX[kind] // window_px))
        peak_bytes = int(lasting_bytes + one_bytes * batch)
        reason = (
            f"core {core_px} px is the largest of those tried that fits {format_bytes(budget_bytes)} "
            f"({usable:.0%} of the limit {format_bytes(limit_bytes)}); {batch} tile(s) at once"
        )
        return Plan(
            purpose="predict",
            batch=batch,
            limit_bytes=limit_bytes,
            peak_bytes=peak_bytes,
            exact=cuts.exact or is_whole,
            why=(*((_whole_why(known.halo),) if is_whole else cuts.why), reason),
            rejected=tuple(rejected),
            tiles=tiling,
            step_s=facts.seconds(window_px * batch),
        )
    if cuts.refused is not None:
        raise _refusal(cuts.refused, candidates[0], known.halo.stride_px, max(scene_px))
    least_px = window_pixels(cuts.tiling_of(candidates[-1]), scene_px)
    least_bytes = lasting_bytes + facts.predict_bytes_per_px * least_px
    raise _too_little(limit_bytes, least_bytes / usable, is_asked=limits.tile_px is not None)


def choose_train(known: Facts, limits: LimitsSection, task: Task) -> Plan:
    """Return the plain plan where it fits, else the fastest way that does; or say what would be needed."""
    limit_bytes = limit_of(known.machine, limits)
    usable = usable_share(known.machine)
    budget_bytes = usable * limit_bytes
    found = choose(
        task, limit_bytes=limit_bytes, budget_bytes=budget_bytes, approximate=limits.allow_approximate
    )
    if isinstance(found, Plan):
        return found
    least = min(found, key=lambda way: way.peak_bytes)
    raise PlanError(
        explain(
            f"training {task.batch} windows of {format_size(task.side_px)} does not fit",
            f"{format_bytes(found[0].peak_bytes)} predicted, and at least {format_bytes(least.peak_bytes)} "
            f"by {least.name}",
            f"at most {format_bytes(budget_bytes)} ({usable:.0%} of the limit)",
            f"{_remedy(known, task, found, budget_bytes)}, or raise limits.gpu_memory (limits.host_memory on a CPU)",
        )
    )


def _remedy(known: Facts, task: Task, found: list[Way], budget_bytes: float) -> str:
    """Say what would fit: a smaller batch, a smaller window, or a way that is not exact."""
    lasting_bytes = known.window.weights_bytes if known.train is None else known.train.weights_bytes
    if lasting_bytes >= budget_bytes:
        return "take a smaller model"  # no window fits beside weights, gradients and optimizer
    one_bytes = (found[0].peak_bytes - lasting_bytes) / task.batch
    fits = int((budget_bytes - lasting_bytes) // max(1, one_bytes))
    remedy = f"set train.batch = {fits}" if fits else "set a smaller train.tile_px"
    inexact = [way for way in found if way.inexact and way.fits(budget_bytes)]
    if inexact:
        fastest = min(inexact, key=lambda way: way.step_s)
        remedy += f", or limits.allow_approximate = true for {fastest.name} ({fastest.inexact})"
    return remedy


def usable_bytes(machine: Machine, limits: LimitsSection) -> float:
    """Return what a plan may fill: the usable share of the limit."""
    return usable_share(machine) * limit_of(machine, limits)


def usable_share(machine: Machine) -> float:
    """Return the share of a limit that a plan may fill: as seen in a real step, or what is usual."""
    usual = USABLE[machine.device.partition(":")[0]]
    return usual if machine.usable_share is None else machine.usable_share


def window_pixels(tiling: Tiling, scene_px: tuple[int, int]) -> int:
    """Count the pixels of one window of a tiling: core and halo, but never more than the padded scene."""
    sides = []
    for before_px, after_px, length_px in zip(
        tiling.halo_before_px, tiling.halo_after_px, scene_px, strict=True
    ):
        padded_px = -(-length_px // tiling.stride_px) * tiling.stride_px
        sides.append(min(tiling.core_px + before_px + after_px, padded_px))
    return sides[0] * sides[1]


@dataclass(frozen=True)
class _Cuts:
    """How a scene may be cut: the halo that is settled for, and whether the answer is then that of the whole."""

    tiling_of: Callable[[int], Tiling]
    why: tuple[str, ...]
    exact: bool
    refused: Obstacle | None = None  # why it may not be cut at all


def _cuts(halo: Halo, limits: LimitsSection) -> _Cuts:
    """Settle the halo, and whether the answer with it is that of the whole scene."""
    need, exact = halo.aligned, not halo.obstacles
    why = [
        f"the model looks {halo.largest_px} px around each pixel; windows start at multiples of {halo.stride_px} px"
    ]
    why += [f"approximate: {obstacle}" for obstacle in halo.obstacles]
    if limits.halo_px is not None and limits.halo_px < halo.largest_px:
        if not limits.allow_approximate:
            raise PlanError(
                explain(
                    "tile halo is too short",
                    f"{limits.halo_px} px",
                    f"{halo.largest_px} px, which the model sees around each pixel",
                    "leave limits.halo_px out to have it computed, or set limits.allow_approximate = true",
                )
            )
        need, exact = halo.at_most(limits.halo_px).aligned, False
        why.append(
            f"approximate: a halo of {limits.halo_px} px was asked for, {halo.largest_px} px are needed"
        )
    refused = halo.obstacles[0] if halo.obstacles and not limits.allow_approximate else None
    return _Cuts(lambda core_px: Tiling.of(core_px, need), tuple(why), exact, refused)


def _too_little(limit_bytes: int, least_bytes: float, *, is_asked: bool) -> PlanError:
    smaller = "leave limits.tile_px out to have it planned" if is_asked else "take a smaller model"
    return PlanError(
        explain(
            "no tile fits the memory limit",
            format_bytes(limit_bytes),
            f"at least {format_bytes(least_bytes)}",
            f"raise limits.gpu_memory (limits.host_memory on a CPU), or {smaller}",
        )
    )


def _refusal(obstacle: Obstacle, largest_px: int, stride_px: int, side_px: int) -> PlanError:
    """Return the error of a scene that may not be cut; one larger than any core that is tried can be asked for."""
    step_px = math.lcm(stride_px, 16)
    whole_px = -(-side_px // step_px) * step_px
    asking = f"set limits.tile_px = {whole_px} to try it in one window, " if largest_px < side_px else ""
    return PlanError(
        explain(
            "the model cannot be tiled exactly",
            str(obstacle),
            "operations that look at a bounded neighbourhood, or a size that the model takes and memory for the whole "
            "scene in one window",
            f"{asking}choose another setting of the model, or set limits.allow_approximate = true",
        )
    )


def _whole(core_px: int) -> Tiling:
    """Return the tiling whose one window is the scene itself, not filled up to any stride: the model sees just that."""
    return Tiling(core_px, (0, 0), (0, 0), 1)


def _whole_why(halo: Halo) -> str:
    return f"a window is a whole picture, for the model looks at all of it: {halo.obstacles[0]}"


def _candidates(kind: str, asked_px: int | None, stride_px: int, scene_px: tuple[int, int]) -> list[int]:
    """List cores to try, largest first: multiples of the stride, no larger than the scene needs."""
    if asked_px is not None:
        if asked_px % stride_px or asked_px % 16:
            step_px = math.lcm(stride_px, 16)
            up_px = -(-asked_px // step_px) * step_px
            needed = f"a multiple of {step_px} px (stride of the model and block of the file)"
            raise PlanError(
                explain(
                    "limits.tile_px does not fit", f"{asked_px} px", needed, f"set limits.tile_px = {up_px}"
                )
            )
        return [asked_px]
    cores = [core for core in _CORES_PX if core <= _LARGEST_CORE_PX[kind]]
    evened = dict.fromkeys(_evened(core_px, stride_px, max(scene_px)) for core_px in cores)
    return sorted(evened, reverse=True)


def _evened(core_px: int, stride_px: int, length_px: int) -> int:
    """Share a scene out evenly: 1280 px in cores of 1024 is one and a rest, which costs as much as two of 640."""
    num_cores = -(-length_px // core_px)
    # large blocks where cores are large: files of many small blocks are slow to read
    step_px = math.lcm(stride_px, max(16, min(256, core_px // 8)))
    return -(-length_px // (num_cores * step_px)) * step_px


def limit_of(machine: Machine, limits: LimitsSection) -> int:
    """Return the memory a plan may use: what the job says, as far as it is free, or what the device has free."""
    key = "host_memory" if machine.device == "cpu" else "gpu_memory"
    asked: int | None = getattr(limits, key)
    if asked is not None and asked > machine.memory_bytes:
        raise PlanError(
            explain(
                f"limits.{key} is more than {machine.name} has",
                format_bytes(asked),
                f"at most {format_bytes(machine.memory_bytes)}",
                "lower it, or leave it out to use what is free",
            )
        )
    return machine.free_bytes if asked is None else min(asked, machine.free_bytes)


def _too_large(what: str, need_bytes: float, budget_bytes: float) -> Rejected:
    return Rejected(what, f"needs {format_bytes(need_bytes)}, {format_bytes(budget_bytes)} may be used")
