"""Chooses what is moved to host memory and what is made again, together: the least time that keeps a budget.

Both free memory for the time between forward and backward. Copies cost nothing as long as they hide behind the step,
and then much; making again always costs a little. What hides cannot be said of one copy alone, so a byte moved is given
a price; at each of several prices the cheapest choice is made, and played out; the fastest of them is then improved by
trying single decisions the other way round.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outsize.plan.choice import Choice, Ground, Item
from outsize.plan.cost import Changed, StepCost
from outsize.plan.plan import Swap
from outsize.plan.recompute import OpSeconds, Recipe
from outsize.plan.swap import LEAST_BYTES, Movable, Points, find_points
from outsize.plan.timeline import Link, Timeline, beginnings, play

# of a byte moved; 1: all of the time of its copy
_PRICES = (0.002, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.2)
_FEW_PRICES = (0.02, 0.1, 0.3, 1.0)
_MANY_ITEMS = 300  # so many more, and another price in between is left out
_LEAST_SHARE = 1e-3  # of the bytes that are missing; a recipe for less is not looked at
# single decisions that are tried the other way round: fewer where there are many, so that it stays a matter of seconds
_MOST_TRIALS, _MOST_WORK = 150, 20_000


@dataclass(frozen=True)
class Mix:
    """What is made again and what is moved; where nothing keeps the budget, a way with a low peak."""

    recipes: tuple[Recipe, ...]
    swap: Swap | None
    changed: Changed
    extra_s: float  # over the plain step: recipes and waiting
    stall_s: float  # of it, waiting for copies
    peak_bytes: int


def mix(
    cost: StepCost,
    recipes: Sequence[Recipe],
    op_s: OpSeconds,
    link: Link | None,
    budget_bytes: float,
    *,
    quick: bool = False,
    least_bytes: int = LEAST_BYTES,
) -> Mix:
    """Return the fastest way found that keeps the budget.

    What a recipe starts from may be moved, and is then needed when the recipe runs, or be made again itself. Without
    a link nothing is moved; without recipes nothing is made again. A quick answer is a few per cent of the step worse.
    """
    search = _Search(cost, recipes, op_s, link, budget_bytes, least_bytes=least_bytes)
    best = search.first(_FEW_PRICES if quick else _PRICES)
    if best is None:
        best = search.lowest()
    elif not quick:
        best = search.improved(best)
    again = tuple(best.choice.recipes.values())
    changed = merged(best.choice.changed(), Changed(twice=best.timeline.twice()))
    swap = best.timeline.as_swap(search.points) if best.timeline.away else None
    return Mix(again, swap, changed, best.extra_s, best.timeline.stall_s, best.timeline.peak_bytes)


def schedule(
    cost: StepCost,
    storages: Collection[int],
    op_s: OpSeconds,
    link: Link,
    budget_bytes: float,
    recipes: Sequence[Recipe] = (),
) -> tuple[Swap, Timeline] | None:
    """Return when these storages leave and return, with these recipes; None: it cannot fit."""
    search = _Search(cost, recipes, op_s, link, budget_bytes, least_bytes=0)
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
    return Changed({**first.anew, **second.anew}, held, {**first.twice, **second.twice})


@dataclass(frozen=True)
class _Timed:
    """A choice that was played out."""

    choice: Choice
    timeline: Timeline
    extra_s: float
    price: float = 1.0  # of a byte moved, at which it was made


class _Search:
    """A step, and all that may be chosen in it."""

    def __init__(
        self,
        cost: StepCost,
        recipes: Sequence[Recipe],
        op_s: OpSeconds,
        link: Link | None,
        budget_bytes: float,
        *,
        least_bytes: int = LEAST_BYTES,
    ) -> None:
        found = find_points(cost, least_bytes)
        self.points: Points = found if link else replace(found, movable=())
        self._budget_bytes = budget_bytes
        self.ground = Ground(cost)
        self._link = link or Link(1.0, 1.0)
        self._op_s = [op_s(op) for op in cost.facts.ops]
        missing_bytes = int(self.ground.live_bytes.max(initial=0)) - budget_bytes
        worthwhile = [each for each in recipes if each.freed_bytes >= _LEAST_SHARE * missing_bytes]
        self._items: list[Item] = [*self.points.movable, *worthwhile]
        self._copy_s = self._copy_seconds()
        away = [self.ground.away(item) for item in self._items]
        self._away = np.array(away, np.int64).reshape(-1, 3).T  # from, to, bytes

    def _copy_seconds(self) -> dict[int, float]:
        """Return the time of each storage's copy, more where less of the step is left to hide it.

        What is saved early and needed late has most of forward for its way out and most of backward for its way back.
        """
        begins_s = beginnings(self._op_s, {})
        turn_s, end_s = float(begins_s[self.points.turn]), float(begins_s[-1])
        found = {}
        for each in self.points.movable:
            out_share = (turn_s - float(begins_s[each.packed])) / max(turn_s, 1e-9)
            in_share = (float(begins_s[each.need]) - turn_s) / max(end_s - turn_s, 1e-9)
            share = max(min(out_share, in_share), 1e-3)
            found[each.storage] = self._link.out_s(each.size_bytes) / share
        return found

    def first(self, prices: Sequence[float]) -> _Timed | None:
        """Return the fastest of the choices at several prices; None where none keeps the budget."""
        best: _Timed | None = None
        few = prices[:: 1 + len(self._items) // _MANY_ITEMS]
        for price in few if self.points.movable else prices[-1:]:
            choice = Choice(self.ground)
            self._fill(choice, self._budget_bytes, price)
            timed = self.timed(choice, price)
            if timed is not None and (best is None or timed.extra_s < best.extra_s):
                best = timed
        return best

    def lowest(self) -> _Timed:
        """Return a choice that holds little, whatever it costs."""
        choices = []
        for price in (_PRICES[0], _PRICES[-1]):
            choice = Choice(self.ground)
            self._fill(choice, 0, price)
            choices.append(choice)
        choice = min(choices, key=lambda each: each.peak_bytes)
        timed = self.timed(choice, budget_bytes=choice.peak_bytes)
        assert timed is not None  # it keeps what it holds
        return timed

    def improved(self, best: _Timed) -> _Timed:
        """Try each decision the other way round for as long as that makes the step faster."""
        untried = 0
        for item in self._round_and_round(min(_MOST_TRIALS, _MOST_WORK // max(1, len(self._items)))):
            if untried >= len(self._items) or best.extra_s <= 0:
                break
            untried += 1
            tried = self._flipped(best, item)
            if tried is not None and tried.extra_s < best.extra_s - 1e-9:
                best, untried = tried, 0
        return best

    def _round_and_round(self, num: int) -> Iterator[Item]:
        dearest = sorted(self._items, key=lambda item: -self._seconds(item, 1.0))
        for place in range(num if dearest else 0):
            yield dearest[place % len(dearest)]

    def _flipped(self, best: _Timed, item: Item) -> _Timed | None:
        choice = best.choice.copy()
        if choice.has(item):
            choice.drop(item)
        else:
            for other in [each for each in choice.items if _in_the_way(each, item)]:
                choice.drop(other)
            if not choice.admits(item):
                return None
            choice.take(item)
        self._fill(choice, self._budget_bytes, best.price, fixed=item)
        return self.timed(choice, best.price)

    def timed(self, choice: Choice, price: float = 1.0, budget_bytes: float | None = None) -> _Timed | None:
        """Return a choice played out; None where it does not keep the budget."""
        budget_bytes = self._budget_bytes if budget_bytes is None else budget_bytes
        extra = choice.extra_seconds()
        moving, others = choice.on_the_way()
        played = play(self.points, beginnings(self._op_s, extra), others, moving, self._link, budget_bytes)
        if played is None:
            return None
        return _Timed(choice, played, sum(extra.values()) + played.stall_s, price)

    def _fill(self, choice: Choice, budget_bytes: float, price: float, fixed: Item | None = None) -> None:
        """Add what frees most for its price until the budget is kept, then leave out what it is kept without."""
        heap = self._hopes(choice, budget_bytes, price) if choice.peak_bytes > budget_bytes else []
        while heap and choice.peak_bytes > budget_bytes:
            _, place = heapq.heappop(heap)
            item = self._items[place]
            if item is fixed or not choice.admits(item):
                continue
            worth = choice.gain_bytes(item, budget_bytes) / self._seconds(item, price)
            if worth > 0 and heap and worth < -heap[0][0]:
                heapq.heappush(heap, (-worth, place))
            elif worth > 0:
                choice.take(item)
        if choice.peak_bytes > budget_bytes:
            return
        for item in sorted(choice.items, key=lambda each: -self._seconds(each, price)):
            if item is not fixed and choice.can_go(item, budget_bytes):
                choice.drop(item)

    def _hopes(self, choice: Choice, budget_bytes: float, price: float) -> list[tuple[float, int]]:
        """Return a heap of what each item frees for its price at the very most, the best first."""
        over = np.maximum(choice.live_bytes - budget_bytes, 0)
        sums, counts = (np.concatenate(([0], np.cumsum(each))) for each in (over, over > 0))
        starts, ends, sizes = self._away
        gains = np.minimum(sums[ends] - sums[starts], sizes * (counts[ends] - counts[starts]))
        heap = [
            (-gain / self._seconds(self._items[place], price), place)
            for place, gain in enumerate(gains.tolist())
            if gain > 0
        ]
        heapq.heapify(heap)
        return heap

    def _seconds(self, item: Item, price: float) -> float:
        return price * self._copy_s[item.storage] if isinstance(item, Movable) else max(item.cost_s, 1e-9)


def _in_the_way(chosen: Item, item: Item) -> bool:
    """Say whether something chosen must go before an item can be added."""
    if chosen.storage == item.storage:
        return True
    if isinstance(item, Recipe) and chosen.storage in item.held:
        return True
    return isinstance(chosen, Recipe) and item.storage in chosen.held
