"""Chooses what is moved to host memory and what is recomputed, together: the least time that keeps a budget.

Both free memory for the time between forward and backward. Copies cost nothing as long as they hide behind the step,
and then much; recomputing always costs a little.

Two limits are kept: the budget, by what tensors take, and the limit of what a GPU's allocator holds for them, gaps
included. How far the second goes beyond the first is not to be foreseen, so choices for smaller and smaller budgets are
looked at, until they are slower than one that is known to fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from outsize.plan.cost import Changed, StepCost
from outsize.plan.memory import LEAST_BYTES, Arena, StorageRecipe
from outsize.plan.plan import Recompute, Swap
from outsize.plan.search.pace import Room
from outsize.plan.search.search import FEW_PRICES, Search, Timed
from outsize.plan.search.timeline import Link
from outsize.plan.times import OpSeconds

_MOST_SHARES, _LEAST_SHARE = 8, 0.7  # of the budget, that are looked at
_STEPS = (0.9, 0.97)  # from a share to the next one, by how much more is held than may be
_MOST_IMPROVED, _PAINS = 2, 0.5  # of the least shares that may be fast enough, and how long each is looked at
_OVER = 8.0  # times of a step that holding twice what may be held counts for


@dataclass(frozen=True)
class Mixture:
    """What is recomputed and what is moved; where nothing keeps the budget, a way with a low peak."""

    recipes: tuple[StorageRecipe, ...]
    waits: tuple[int, ...]  # of each: how many saved tensors before its own turn it is made to stay
    swap: Swap | None
    changed: Changed
    extra_s: float  # of the device, over the plain step: recipes and waiting
    stall_s: float  # of it, waiting for copies
    peak_bytes: int

    def as_recompute(self, blocks: tuple[str, ...] = ()) -> Recompute | None:
        """Return the setting of a plan, for a step in which these blocks are run again as well."""
        if not self.recipes and not blocks:
            return None
        pairs = [
            (key, wait) for recipe, wait in zip(self.recipes, self.waits, strict=True) for key in recipe.keys
        ]
        costly = dict.fromkeys(call for recipe in self.recipes for call in recipe.costly)
        return Recompute(
            tuple(key for key, _ in pairs), blocks, tuple(costly), tuple(wait for _, wait in pairs)
        )


def mix(
    cost: StepCost,
    recipes: Sequence[StorageRecipe],
    op_s: OpSeconds,
    link: Link | None,
    budget_bytes: float,
    *,
    room: Room | None = None,
    quick: bool = False,
    least_bytes: int = LEAST_BYTES,
) -> Mixture:
    """Return the fastest way found that keeps the budget, and for which the allocator holds no more than it may.

    If there is none of the latter kind, it holds as little more as possible: gaps can be closed, at a price. What a
    recipe starts from may be moved, and is then needed when the recipe runs, or be recomputed itself. Without a link
    nothing is moved, and never more than host memory holds; without recipes nothing is recomputed. A quick answer is a
    few per cent of the step worse, and knows nothing of gaps.
    """
    room = room or Room()
    look = partial(Search, cost, recipes, op_s, link, room=room, least_bytes=least_bytes)
    search = look(budget_bytes)
    if quick:
        best = search.first(FEW_PRICES)
    else:
        best = _without_gaps(
            look, budget_bytes, _Fitting(cost, room.held_bytes, sum(map(op_s, cost.facts.ops)))
        )
    best = search.lowest() if best is None else best
    if not quick:
        later = search.postponed(best)
        fits = math.isinf(room.held_bytes) or Arena(cost).held_bytes(later.changed) <= room.held_bytes
        best = later if fits else best
    again = tuple(best.choice.recipes.values())
    swap = best.timeline.as_swap(search.points) if best.timeline.away else None
    waits = tuple(map(best.choice.waits, again))
    return Mixture(
        again, waits, swap, best.changed, best.device_s, best.timeline.stall_s, best.timeline.peak_bytes
    )


class _Fitting:
    """Sees choices, and remembers the fastest for which the allocator holds what it may; or else nearly that."""

    def __init__(self, cost: StepCost, limit_bytes: float, step_s: float) -> None:
        self._arena, self._limit_bytes, self._step_s = Arena(cost), limit_bytes, step_s
        self.best: Timed | None = None
        self.score_s = math.inf

    def __call__(self, timed: Timed) -> None:
        if timed.extra_s < self.score_s:
            score_s = timed.extra_s + _OVER * self._at_least_over(timed) * self._step_s
            if score_s < self.score_s:
                self.best, self.score_s = timed, score_s

    def over(self, timed: Timed) -> float:
        """Return by what share more is held than may be."""
        if math.isinf(self._limit_bytes):
            return 0.0
        return max(0.0, self._arena.held_bytes(timed.changed) / self._limit_bytes - 1)

    def _at_least_over(self, timed: Timed) -> float:
        if math.isinf(self._limit_bytes):
            return 0.0
        # one that holds more is not the best, by whatever more than that
        enough = 1 + (self.score_s - timed.extra_s) / (_OVER * max(self._step_s, 1e-9))
        held_bytes = self._arena.held_bytes(timed.changed, enough * self._limit_bytes)
        return max(0.0, held_bytes / self._limit_bytes - 1)


def _without_gaps(look: Callable[..., Search], budget_bytes: float, fitting: _Fitting) -> Timed | None:
    """Return the fastest choice that fits, of those for the budget and for shares of it."""
    begun: list[tuple[Search, Timed]] = []
    share = 1.0
    while len(begun) < _MOST_SHARES and share >= _LEAST_SHARE:
        known_s = fitting.score_s  # before this one is looked at, for it may be the first that fits
        search = look(share * budget_bytes, watch=fitting)
        first = search.first(FEW_PRICES)
        if first is None or first.extra_s >= known_s:
            break
        begun.append((search, first))
        share *= min(max(1 / (1 + fitting.over(first)), _STEPS[0]), _STEPS[1])
    for search, first in begun[-_MOST_IMPROVED:]:
        search.improved(first, _PAINS)
    return fitting.best
