"""Chooses a plan that needs less than one that ran out of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outsize.errors import PlanError, explain
from outsize.plan.plan import Passes, Plan, Tiling
from outsize.plan.way import Way
from outsize.units import format_bytes

_LEAST_PASS_CORE_PX = 32
_LESS = 0.97  # of what there is: the shortage tells the least that was wanted, not all of it


def tighter(
    choose: Callable[[float], Plan | list[Way]], before: Plan, *, wanted_bytes: int, available_bytes: int
) -> Plan:
    """Return the fastest plan that fits what is available, and needs less than the one before by any account.

    `choose` takes a budget and returns a plan or all ways that there are. Where the step before wanted more than
    was predicted, the others are taken to want more by the same factor: that is the lesson of the shortage.
    """
    short = max(1.0, wanted_bytes / before.peak_bytes)
    budget_bytes = min(_LESS * available_bytes / short, before.peak_bytes - 1.0)
    found = choose(budget_bytes)
    if isinstance(found, Plan):
        return found
    raise PlanError(
        explain(
            "memory ran out, and no tighter way is left",
            f"{format_bytes(available_bytes)} available, {format_bytes(max(wanted_bytes, before.peak_bytes))} wanted",
            _least(found, short) if found else f"{format_bytes(before.peak_bytes)} as planned, and more",
            "free memory on the device, take a smaller batch or window, or set limits.allow_approximate = true",
        )
    )


def _least(ways: list[Way], short: float) -> str:
    least = min(ways, key=lambda way: (way.inexact is not None, way.peak_bytes))
    needs = f"at least {format_bytes(short * least.peak_bytes / _LESS)} for {least.name}"
    return f"{needs}, which is approximate: {least.inexact}" if least.inexact else needs


def smaller(plan: Plan, *, cuts: bool) -> Plan | None:
    """Return the plan of a prediction with half as many tiles at once, or with smaller ones, if it may cut; or None."""
    tiles = plan.tiles
    if plan.batch > 1:
        why = f"memory ran out with {plan.batch} at once"
        return replace(plan, batch=plan.batch // 2, why=(*plan.why, why))
    if plan.passes is not None and tiles is not None:
        return _smaller_passes(plan, plan.passes, tiles)
    if not cuts or tiles is None or tiles.core_px <= max(tiles.stride_px, tiles.halo.largest_px):
        return None  # what is read is halo for the most part, and hardly less with a smaller core
    core_px = max(1, tiles.core_px // 2 // tiles.stride_px) * tiles.stride_px
    why = f"memory ran out with a core of {tiles.core_px} px"
    return replace(plan, tiles=replace(tiles, core_px=core_px), why=(*plan.why, why))


def _smaller_passes(plan: Plan, passes: Passes, tiles: Tiling) -> Plan | None:
    """Halve the cores of passes, exact at any size, until a tile is surroundings for the most part."""
    core_px = passes.core_px // 2 // passes.stride_px * passes.stride_px
    if core_px < max(passes.stride_px, _LEAST_PASS_CORE_PX):
        return None
    # earlier passes have as large cores as this lets them
    cut = replace(passes, core_px=core_px, tile_bytes=passes.tile_bytes // 2)
    why = f"memory ran out with a core of {passes.core_px} px"
    return replace(plan, passes=cut, tiles=replace(tiles, core_px=core_px), why=(*plan.why, why))
