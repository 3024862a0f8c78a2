"""Chooses what is moved to host memory and what is made again, together: the least time that keeps a budget.

Both free memory for the time between forward and backward. Copies cost nothing as long as they hide behind the step,
and then much; making again always costs a little.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outsize.plan.choice import Choice, Item
from outsize.plan.cost import Changed, StepCost
from outsize.plan.plan import Recompute, Swap
from outsize.plan.recompute import OpSeconds, Recipe
from outsize.plan.search import FEW_PRICES, PRICES, Search
from outsize.plan.swap import LEAST_BYTES
from outsize.plan.timeline import Link, Timeline


@dataclass(frozen=True)
class Mix:
    """What is made again and what is moved; where nothing keeps the budget, a way with a low peak."""

    recipes: tuple[Recipe, ...]
    waits: tuple[int, ...]  # of each: how many saved tensors before its own turn it is made to stay
    swap: Swap | None
    changed: Changed
    extra_s: float  # over the plain step: recipes and waiting
    stall_s: float  # of it, waiting for copies
    peak_bytes: int

    def as_recompute(self, blocks: tuple[str, ...] = ()) -> Recompute | None:
        """Return the setting of a plan, for a step in which these blocks are run again as well."""
        if not self.recipes and not blocks:
            return None
        pairs = [
            (key, wait) for recipe, wait in zip(self.recipes, self.waits, strict=True) for key in recipe.keys
        ]
        dear = dict.fromkeys(call for recipe in self.recipes for call in recipe.dear)
        return Recompute(
            tuple(key for key, _ in pairs), blocks, tuple(dear), tuple(wait for _, wait in pairs)
        )


def mix(
    cost: StepCost,
    recipes: Sequence[Recipe],
    op_s: OpSeconds,
    link: Link | None,
    budget_bytes: float,
    *,
    host_bytes: float = math.inf,
    quick: bool = False,
    least_bytes: int = LEAST_BYTES,
) -> Mix:
    """Return the fastest way found that keeps the budget.

    What a recipe starts from may be moved, and is then needed when the recipe runs, or be made again itself. Without
    a link nothing is moved, and never more than host memory holds; without recipes nothing is made again. A quick
    answer is a few per cent of the step worse.
    """
    search = Search(cost, recipes, op_s, link, budget_bytes, host_bytes=host_bytes, least_bytes=least_bytes)
    best = search.first(FEW_PRICES if quick else PRICES)
    if best is None:
        best = search.lowest()
    elif not quick:
        best = search.improved(best)
    again = tuple(best.choice.recipes.values())
    changed = merged(best.choice.changed(), Changed(twice=best.timeline.twice()))
    swap = best.timeline.as_swap(search.points) if best.timeline.away else None
    waits = tuple(map(best.choice.waits, again))
    return Mix(again, waits, swap, changed, best.extra_s, best.timeline.stall_s, best.timeline.peak_bytes)


def schedule(
    cost: StepCost,
    storages: Collection[int],
    op_s: OpSeconds,
    link: Link,
    budget_bytes: float,
    recipes: Sequence[Recipe] = (),
) -> tuple[Swap, Timeline] | None:
    """Return when these storages leave and return, with these recipes; None: it cannot fit."""
    search = Search(cost, recipes, op_s, link, budget_bytes, least_bytes=0)
    choice = Choice(search.ground)
    items: list[Item] = [each for each in search.points.movable if each.storage in storages]
    for item in (*items, *recipes):
        choice.take(item)
    timed = search.timed(choice)
    return None if timed is None else (timed.timeline.as_swap(search.points), timed.timeline)


def merged(first: Changed, second: Changed) -> Changed:
    """Return both changes together; of a storage that both make twice the second's word holds."""
    held = dict(first.held)
    for storage, until in second.held.items():
        held[storage] = max(held.get(storage, 0), until)
    passing = dict(first.passing)
    for op, num_bytes in second.passing.items():
        passing[op] = passing.get(op, 0) + num_bytes
    return Changed({**first.anew, **second.anew}, held, {**first.twice, **second.twice}, passing)
