"""Chooses tiles and their batch for a prediction within a memory limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from outsize.errors import PlanError, explain
from outsize.job import LimitsSection
from outsize.plan.facts import Facts, Machine
from outsize.plan.limits import limit_of, usable_share
from outsize.plan.plan import Plan, Rejected, Tiling
from outsize.plan.predict.cores import cores_to_try, key_step, round_up
from outsize.plan.predict.passes import passes_within
from outsize.tiles.halo import Halo, Obstacle
from outsize.tiles.passes import PassGraph
from outsize.units import format_bytes, format_count, format_pixels

_ENOUGH_PX = {
    "cpu": 1 << 20,
    "cuda": 1 << 23,
}  # pixels at once that keep the device busy; more only costs memory


def choose_predict(
    known: Facts,
    limits: LimitsSection,
    scene_px: tuple[int, int],
    *,
    resident_bytes: int = 0,
    any_size: bool = True,
    laid_out: Callable[[], PassGraph | None] | None = None,
) -> Plan:
    """Return the tiling that takes the least time of those that fit, exact before approximate, and its batch.

    `resident_bytes` are there besides the weights: the optimizer's state during a training. A model that looks at the
    whole picture is exact where a window is one, if it takes pictures of `any_size`, and in passes over the tiles of a
    scene for which it can be `laid_out`.
    """
    room = _Room(limit_of(known.machine, limits), usable_share(known.machine))
    lasting_bytes = known.window.peak_bytes(0) + resident_bytes
    free_bytes = room.budget_bytes - lasting_bytes
    cuts = _cuts(known.halo, limits)
    candidates = _candidates(known.machine, limits.tile_px, known.halo.stride_px, scene_px)
    tried = [_tile(core_px, known, cuts, scene_px, free_bytes, any_size=any_size) for core_px in candidates]
    allowed = [tile for tile in tried if tile.exact or cuts.refused is None]
    fitting = [tile for tile in allowed if tile.window_bytes <= free_bytes]
    laid = None
    if known.halo.obstacles and not any(tile.exact for tile in fitting) and laid_out is not None:
        laid = laid_out() if limits.passes and limits.halo_px is None else None
    if laid is not None and not laid.obstacles:
        in_passes = passes_within(
            known, limits, laid, candidates, scene_px, (room.limit_bytes, room.budget_bytes, lasting_bytes)
        )
        if in_passes is not None:
            return in_passes
    if not fitting and cuts.refused is not None:
        raise _refusal(cuts.refused, laid, candidates[0], known.halo.stride_px, max(scene_px))
    if not fitting:
        least_bytes = lasting_bytes + min(tile.window_bytes for tile in allowed)
        raise _too_little(room.limit_bytes, least_bytes / room.usable, is_asked=limits.tile_px is not None)
    taken = min(fitting, key=lambda tile: (not tile.exact, tile.cost, -tile.core_px))
    is_one = taken.core_px >= max(scene_px)
    too_large = [tile for tile in allowed if tile.core_px > taken.core_px and tile not in fitting]
    if limits.tile_px is not None:
        why = f"limits.tile_px asks for core {taken.core_px} px, and it fits {room}"
    else:
        why = _why(taken, fitting, too_large, scene_px, room)
    return Plan(
        purpose="predict",
        batch=taken.batch,
        limit_bytes=room.limit_bytes,
        peak_bytes=int(lasting_bytes + taken.window_bytes * taken.batch),
        exact=taken.exact,
        why=(*taken.why, f"{why}; {format_count(taken.batch, 'picture' if is_one else 'tile')} at once"),
        rejected=tuple(
            _too_large(f"core {tile.core_px} px", lasting_bytes + tile.window_bytes, room.budget_bytes)
            for tile in too_large
        ),
        tiles=taken.tiling,
        step_s=known.window.seconds(taken.window_px * taken.batch),
    )


def refuse_limits(machine: Machine, limits: LimitsSection, halo: Halo, scene_px: tuple[int, int]) -> None:
    """Refuse what of a job's limits is wrong whatever a model needs: more memory than there is, a core, a halo."""
    limit_of(machine, limits)
    _cuts(halo, limits)
    _candidates(machine, limits.tile_px, halo.stride_px, scene_px)


@dataclass(frozen=True)
class _Room:
    """The memory of a device, and the share of it that may be planned for."""

    limit_bytes: int
    usable: float

    @property
    def budget_bytes(self) -> float:
        return self.usable * self.limit_bytes

    def __str__(self) -> str:
        return f"{format_bytes(self.budget_bytes)} ({self.usable:.0%} of the limit {format_bytes(self.limit_bytes)})"


@dataclass(frozen=True)
class _Tile:
    """One way to cut a scene for prediction."""

    tiling: Tiling
    window_px: int
    window_bytes: float
    batch: int
    cost: float  # of the whole scene: seconds, or pixels where the rates of the machine are not known
    exact: bool
    why: tuple[str, ...]

    @property
    def core_px(self) -> int:
        return self.tiling.core_px


def _tile(
    core_px: int,
    known: Facts,
    cuts: _Cuts,
    scene_px: tuple[int, int],
    free_bytes: float,
    *,
    any_size: bool,
) -> _Tile:
    """Look at one core: a scene in one window needs no halo, and a model may see all of it there."""
    is_one, exact, why = core_px >= max(scene_px), cuts.exact, cuts.why
    tiling = cuts.tiling_of(core_px)
    if is_one and known.halo.obstacles and any_size:
        tiling, exact, why = _whole(core_px), True, (_whole_why(known.halo),)
    elif is_one and not known.halo.obstacles:  # a halo that was asked to be shorter is of no account
        tiling, exact, why = Tiling.of(core_px, known.halo), True, cuts.why[:1]
    window_px = window_pixels(tiling, scene_px)
    num_windows = math.prod(-(-length_px // core_px) for length_px in scene_px)
    scene_s = seconds_of_windows(known, num_windows, window_px, free_bytes)
    return _Tile(
        tiling,
        window_px,
        window_bytes=known.window.predict_bytes_per_px * window_px,
        batch=at_once(known, window_px, free_bytes),
        cost=num_windows * window_px if scene_s is None else scene_s,
        exact=exact,
        why=why,
    )


def at_once(known: Facts, window_px: int, free_bytes: float) -> int:
    """Return how many windows are predicted together: as many as keep the device busy, and fit what is free."""
    fits = int(free_bytes // (known.window.predict_bytes_per_px * window_px))
    return max(1, min(fits, _ENOUGH_PX[known.machine.kind] // window_px))


def seconds_of_windows(known: Facts, num: int, window_px: int, free_bytes: float) -> float | None:
    """Return the time of so many windows of a scene, batch by batch; None: the rates of the machine are not known."""
    batch = at_once(known, window_px, free_bytes)
    batch_s, rest_s = (known.window.seconds(each * window_px) for each in (batch, num % batch))
    if batch_s is None or rest_s is None:
        return None
    return num // batch * batch_s + (rest_s if num % batch else 0.0)


def _why(
    taken: _Tile, fitting: list[_Tile], too_large: list[_Tile], scene_px: tuple[int, int], room: _Room
) -> str:
    """Say why a core was taken of those that were tried; the table of all of them tells the same."""
    core = f"core {taken.core_px} px"
    if taken.core_px >= max(scene_px):
        return f"the largest picture, {format_pixels(*scene_px)}, fits {room} whole: {core}, one window"
    if any(tile.core_px > taken.core_px for tile in fitting):
        return f"{core} computes the fewest pixels of those that fit {room}"
    if too_large:
        return f"{core} is the largest of those tried that fits {room}"
    return f"{core} is the largest that an image of {format_pixels(*scene_px)} is cut into, and fits {room}"


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
    why += [f"approximate: {text}" for text in dict.fromkeys(map(str, halo.obstacles))]
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


def _refusal(
    obstacle: Obstacle, laid: PassGraph | None, largest_px: int, stride_px: int, side_px: int
) -> PlanError:
    """Return the error of a scene that may not be cut; one larger than any core that is tried can be asked for."""
    whole_px = round_up(side_px, key_step(stride_px))
    asking = f"set limits.tile_px = {whole_px} to try it in one window, " if largest_px < side_px else ""
    return PlanError(
        explain(
            "the model cannot be tiled exactly",
            f"{obstacle}; nor in passes, {laid.obstacles[0]}" if laid and laid.obstacles else str(obstacle),
            "operations that look at a bounded neighbourhood, or a size that the model takes and memory for the whole "
            "scene in one window",
            f"{asking}choose another setting of the model, or set limits.allow_approximate = true",
        )
    )


def _whole(core_px: int) -> Tiling:
    """Return the tiling whose one window is the scene itself, not filled up to any stride: the model sees just that."""
    return Tiling(core_px, (0, 0), (0, 0), 1)


def _whole_why(halo: Halo) -> str:
    return f"a window is a whole picture, and the answer exact; cut, it would not be: {halo.obstacles[0]}"


def _candidates(
    machine: Machine, asked_px: int | None, stride_px: int, scene_px: tuple[int, int]
) -> list[int]:
    """List cores to try, largest first: multiples of the stride, no larger than the scene needs."""
    if asked_px is not None:
        step_px = key_step(stride_px)
        if asked_px % step_px:
            up_px = round_up(asked_px, step_px)
            needed = f"a multiple of {step_px} px (stride of the model and block of the file)"
            raise PlanError(
                explain(
                    "limits.tile_px does not fit", f"{asked_px} px", needed, f"set limits.tile_px = {up_px}"
                )
            )
        return [asked_px]
    return cores_to_try(machine.kind, scene_px, stride_px)


def _too_large(what: str, need_bytes: float, budget_bytes: float) -> Rejected:
    return Rejected(what, f"needs {format_bytes(need_bytes)}, {format_bytes(budget_bytes)} may be used")
