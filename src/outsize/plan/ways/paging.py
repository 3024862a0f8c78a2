"""A recorded step that has its memory by pages: what it may fill, and the way that fills it."""

from __future__ import annotations

import math
from dataclasses import replace

from outsize.plan.cost import StepCost
from outsize.plan.memory import Arena, find_recipes
from outsize.plan.search import Room, mix
from outsize.plan.way import StepPart, StepRequest, Way, in_words, of_mix, seconds_of

# A recorded step that has its memory by pages fills them but for a part of the last one of each tensor. Besides, torch
# holds a little more than weights and optimizer take.
_PAGED_SHARE, _BESIDE_PAGES_BYTES = 0.99, 64 * 2**20
SURE = 0.96  # of what may be held: kernels take workspace in between, which nobody foresees


def paged_room_bytes(limit_bytes: float) -> float:
    """Return what a step may fill that has its memory by pages."""
    return _PAGED_SHARE * limit_bytes - _BESIDE_PAGES_BYTES


def may_page(task: StepRequest, part: StepPart) -> bool:
    """Whether memory may come by pages: of a step in one part, on a GPU."""
    return task.pages and part.num_runs == 1 and not math.isinf(task.held_bytes)


def paging(task: StepRequest, part: StepPart, cost: StepCost, budget_bytes: float) -> Way:
    """Return a step that recomputes tensors or moves them, and has its memory by pages unless it fits without.

    It is recorded, and may fill nearly all there is, for no gaps come on top: so none that has gaps can be faster.
    """
    # the batch that it was recorded with stays, and the next one comes beside it
    room_bytes = paged_room_bytes(task.held_bytes) - cost.batch_bytes
    recipes = find_recipes(cost, task.again_s or task.op_s)
    found = mix(cost, recipes, task.op_s, task.link, room_bytes, room=Room(task.host_bytes))
    way = Way(
        in_words(found) or "nothing given up",
        found.peak_bytes,
        seconds_of(task, part.num_runs, cost, of_mix(found)),
        {"recompute": found.as_recompute(), "swap": found.swap},
    )
    if way.fits(budget_bytes) and Arena(cost).held_bytes(found.changed) <= SURE * task.held_bytes:
        return way
    return replace(
        way,
        name=f"{way.name}, recorded, memory by pages",
        step_s=seconds_of(replace(task, host_op_s=0.0), part.num_runs, cost, of_mix(found)),
        settings={**way.settings, "graph": True, "paged": True},
        room_bytes=room_bytes,
    )
