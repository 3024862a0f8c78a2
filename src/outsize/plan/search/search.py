"""Looks for the cheapest choice of what is moved and what is recomputed, within a budget.

What hides cannot be said of one copy alone, so a byte moved is given a price. At each of several prices the cheapest
choice is made, and played out; the fastest of them is then improved: single decisions are tried the other way round,
and parts of it are forgotten and filled again, at prices that are a little off.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from outsize.plan.cost import Changed, StepCost, merged
from outsize.plan.memory import LEAST_BYTES, Movable, Points, StorageRecipe, find_points
from outsize.plan.search.choice import Choice, Item, PlainStep
from outsize.plan.search.pace import HostAndDevice, Room, calls_of
from outsize.plan.search.timeline import Link, Seconds, Timeline, beginnings, play, postponed
from outsize.plan.times import OpSeconds

# of a byte moved; 1: all of the time of its copy
PRICES = (0.002, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.2)
FEW_PRICES = (0.02, 0.1, 0.3, 1.0)
_MANY_ITEMS = 300  # so many more, and another price in between is left out
_LEAST_PRICES = 4  # that are looked at however many items there are
_LEAST_SHARE = 1e-3  # of the bytes that are missing; a recipe for less is not looked at
# Single decisions that are tried the other way round, and parts that are filled again: fewer where there are many, so
# that it stays a matter of seconds.
_MOST_TRIALS, _MOST_REFILLS, _MOST_WORK = 150, 200, 60_000
_MOST_STEPS = 30_000_000  # of that work, where a step has many operations
_MOST_REPAIRS, _FEW_REPAIRS = 30, 5  # in one filling
_REPAIR_WORK = 9_000  # most repairs by items: each may look at all of them once more
_AS_GOOD = (
    0.9  # of what the next may be worth at most: enough to be taken where there are many, many of them alike
)
_FORGOTTEN = (0.05, 0.15, 0.3, 0.6)  # shares of what is chosen
_AROUND_OPS = (5, 20, 60)  # or all that is made or fetched so close to one of them
_OFF = (0.2, 0.5, 1.0)  # deviations of the logarithm of prices


@dataclass(frozen=True)
class _Habit:
    """What is taken in a search. What is made long before its turn is in the way of others, and leads astray."""

    passing: bool  # also recipes that pass others by
    most_packs: float  # that something is made before its turn

    def likes(self, choice: Choice, item: Item) -> bool:
        """Say whether something is taken."""
        if isinstance(item, StorageRecipe) and item.through and not self.passing:
            return False
        return math.isinf(self.most_packs) or choice.reach(item) <= self.most_packs


_HABITS = (_Habit(False, 24), _Habit(True, 24), _Habit(True, math.inf))


@dataclass(frozen=True)
class Timed:
    """A choice that was played out."""

    choice: Choice
    timeline: Timeline
    extra_s: float  # by which the step is longer
    device_s: float  # of it, what the device does besides, and waits
    price: float = 1.0  # of a byte moved, at which it was made

    @property
    def changed(self) -> Changed:
        """What it changes in the lives of storages."""
        return merged(self.choice.changed(), Changed(twice=self.timeline.twice()))


class Search:
    """A step, and all that may be chosen in it."""

    def __init__(
        self,
        cost: StepCost,
        recipes: Sequence[StorageRecipe],
        op_s: OpSeconds,
        link: Link | None,
        budget_bytes: float,
        *,
        room: Room | None = None,
        least_bytes: int = LEAST_BYTES,
        watch: Callable[[Timed], None] | None = None,  # sees every choice that keeps the budget
    ) -> None:
        room = room or Room()
        self._watch = watch
        found = find_points(cost, least_bytes)
        self.points: Points = found if link else replace(found, movable=())
        self._budget_bytes = budget_bytes
        self._off: Seconds = np.ones(1)  # by what the price of an item's place is multiplied for a while
        self._habit = _HABITS[-1]
        self.plain = PlainStep(cost, room.host_bytes)
        self._link = link or Link(1.0, 1.0)
        self._pace = room.pace or HostAndDevice.of(cost.facts.ops, op_s, 0.0, overlaps=True)
        self._op_s = self._pace.times(cost.facts.ops, op_s)
        missing_bytes = int(self.plain.live_bytes.max(initial=0)) - budget_bytes
        worthwhile = [each for each in recipes if each.freed_bytes >= _LEAST_SHARE * missing_bytes]
        self._items: list[Item] = [*self.points.movable, *worthwhile]
        few = _REPAIR_WORK // max(1, len(self._items))
        self._most_repairs, self._few_repairs = (min(most, few) for most in (_MOST_REPAIRS, _FEW_REPAIRS))
        self._as_good = _AS_GOOD if len(self._items) > _MANY_ITEMS else 1.0
        self._calls = {id(item): calls_of(item) for item in self._items}
        self._copy_s = self._copy_seconds()
        self._fixed_s = np.array([self._seconds(item, 0.0) for item in self._items], np.float64)
        away = [self.plain.away(item) for item in self._items]
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

    def first(self, prices: Sequence[float]) -> Timed | None:
        """Return the fastest of the choices at several prices; None where none keeps the budget."""
        num = max(_LEAST_PRICES, len(prices) // (1 + len(self._items) // _MANY_ITEMS))
        several = _spread(prices, num) if self.points.movable else list(prices[-1:])
        middle = several.pop(len(several) // 2)
        found = [self._filled(middle, habit) for habit in _HABITS]
        best = min(filter(None, found), key=lambda each: each.extra_s, default=None)
        # what is a good habit at one price is one at others
        habits = _HABITS if best is None else [_HABITS[found.index(best)]]
        found += [self._filled(price, habit) for price, habit in product(several, habits)]
        return min(filter(None, found), key=lambda each: each.extra_s, default=None)

    def _filled(self, price: float, habit: _Habit) -> Timed | None:
        choice, self._habit = Choice(self.plain), habit
        self._fill(choice, self._budget_bytes, price, num_repairs=self._most_repairs)
        return self.timed(choice, price)

    def lowest(self) -> Timed:
        """Return a choice that holds little, whatever it costs."""
        choices = []
        for price, habit in product((PRICES[0], PRICES[-1]), _HABITS):
            choice, self._habit = Choice(self.plain), habit
            self._fill(choice, 0, price, num_repairs=0)
            choices.append(choice)
        choice = min(choices, key=lambda each: each.peak_bytes)
        timed = self.timed(choice, budget_bytes=choice.peak_bytes)
        assert timed is not None  # it keeps what it holds
        return timed

    def improved(self, best: Timed, pains: float = 1.0) -> Timed:
        """Return a choice that is faster, as far as some seconds of looking find one."""
        num = max(1, len(self._items))
        most = min(_MOST_WORK // num, _MOST_STEPS // (num * len(self._op_s)))
        num_trials, num_refills = (int(pains * min(each, most)) for each in (_MOST_TRIALS, _MOST_REFILLS))
        return self._turned(self._refilled(self._turned(best, num_trials), num_refills), num_trials)

    def _turned(self, best: Timed, num: int) -> Timed:
        """Try each decision the other way round for as long as that makes the step faster."""
        untried = 0
        for item in self._round_and_round(num):
            if untried >= len(self._items) or best.extra_s <= 0:
                break
            untried += 1
            tried = self._flipped(best, item)
            if tried is not None and tried.extra_s < best.extra_s - 1e-9:
                best, untried = tried, 0
        return best

    def _refilled(self, best: Timed, num: int) -> Timed:
        """Forget a part of what is chosen and fill it again at prices that are off, so many times."""
        chance = random.Random(0)  # the same plan for the same question
        prices = PRICES[PRICES.index(0.04) :]
        for _ in range(num if self._items else 0):
            if best.extra_s <= 0:
                break
            deviation = chance.choice(_OFF)
            self._off = np.array([math.exp(chance.gauss(0, deviation)) for _ in self._items])
            choice, price, self._habit = best.choice.copy(), chance.choice(prices), chance.choice(_HABITS)
            for item in _forgotten(choice, chance):
                choice.drop(item)
            self._fill(choice, self._budget_bytes, price)
            tried = self.timed(choice, price)
            if tried is not None and tried.extra_s < best.extra_s - 1e-9:
                best = tried
        self._off, self._habit = np.ones(1), _HABITS[-1]
        return best

    def _round_and_round(self, num: int) -> Iterator[Item]:
        costliest = sorted(self._items, key=lambda item: -self._seconds(item, 1.0))
        for place in range(num if costliest else 0):
            yield costliest[place % len(costliest)]

    def _flipped(self, best: Timed, item: Item) -> Timed | None:
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

    def timed(self, choice: Choice, price: float = 1.0, budget_bytes: float | None = None) -> Timed | None:
        """Return a choice played out; None where it does not keep the budget."""
        budget_bytes = self._budget_bytes if budget_bytes is None else budget_bytes
        begins_s = beginnings(self._op_s, choice.extra_seconds(self._delay_s))
        moving, others = choice.on_the_way()
        played = play(self.points, begins_s, others, moving, self._link, budget_bytes)
        if played is None:
            return None
        device_s = sum(each.cost_s for each in choice.recipes.values()) + played.stall_s
        num_calls = sum(self._calls[id(item)] for item in choice.items)
        found = Timed(choice, played, self._pace.extra_s(device_s, num_calls), device_s, price)
        if self._watch is not None:
            self._watch(found)
        return found

    def postponed(self, timed: Timed) -> Timed:
        """Return a choice whose storages leave later, where memory allows."""
        begins_s = beginnings(self._op_s, timed.choice.extra_seconds(self._delay_s))
        timeline = postponed(self.points, timed.timeline, begins_s, self._budget_bytes)
        return replace(timed, timeline=timeline)

    def _fill(
        self,
        choice: Choice,
        budget_bytes: float,
        price: float,
        fixed: Item | None = None,
        num_repairs: int | None = None,
    ) -> None:
        """Add what frees most for its price until the budget is kept, then leave out what it is kept without."""
        banned = set() if fixed is None else {id(fixed)}
        self._add(choice, budget_bytes, price, banned)
        for _ in range(self._few_repairs if num_repairs is None else num_repairs):
            if choice.peak_bytes <= budget_bytes:
                break
            hindrance = _hindrance(choice, fixed)
            if hindrance is None:
                return
            choice.drop(hindrance)
            banned.add(id(hindrance))
            self._add(choice, budget_bytes, price, banned)
        if choice.peak_bytes > budget_bytes:
            return
        for item in sorted(choice.items, key=lambda each: -self._seconds(each, price)):
            if item is not fixed and choice.can_go(item, budget_bytes):
                choice.drop(item)

    def _add(self, choice: Choice, budget_bytes: float, price: float, banned: set[int]) -> None:
        is_full = choice.peak_bytes > budget_bytes
        prices_s = self._prices_s(price)
        heap = self._hopes(choice, budget_bytes, prices_s) if is_full else []
        while heap and is_full:
            _, place = heapq.heappop(heap)
            item = self._items[place]
            if id(item) in banned or not choice.admits(item) or not self._habit.likes(choice, item):
                continue
            worth = choice.gain_bytes(item, budget_bytes) / float(prices_s[place])
            if worth > 0 and heap and worth < self._as_good * -heap[0][0]:
                heapq.heappush(heap, (-worth, place))
            elif worth > 0:
                choice.take(item)
                is_full = choice.peak_bytes > budget_bytes

    def _hopes(self, choice: Choice, budget_bytes: float, prices_s: Seconds) -> list[tuple[float, int]]:
        """Return a heap of what each item frees for its price at the very most, the best first."""
        over = np.maximum(choice.live_bytes - budget_bytes, 0)
        sums, counts = (np.concatenate(([0], np.cumsum(each))) for each in (over, over > 0))
        starts, ends, sizes = self._away
        gains = np.minimum(sums[ends] - sums[starts], sizes * (counts[ends] - counts[starts]))
        (places,) = np.nonzero(gains > 0)
        heap = list(zip((-gains[places] / prices_s[places]).tolist(), places.tolist(), strict=True))
        heapq.heapify(heap)
        return heap

    def _prices_s(self, price: float) -> Seconds:
        """Return what each item costs where a byte moved has this price."""
        prices_s = self._fixed_s.copy()
        for place, each in enumerate(self.points.movable):  # which come first
            prices_s[place] += price * self._copy_s[each.storage]
        return prices_s * self._off

    def _seconds(self, item: Item, price: float) -> float:
        calls = self._calls[id(item)]
        if isinstance(item, Movable):
            return price * self._copy_s[item.storage] + self._pace.price_s(0.0, calls)
        return max(self._pace.price_s(item.cost_s, calls), 1e-9)

    def _delay_s(self, recipe: StorageRecipe) -> float:
        return self._pace.delay_s(recipe.cost_s, self._calls[id(recipe)])


def _spread(prices: Sequence[float], num: int) -> list[float]:
    """Return so many prices from the lowest to the highest; cheap copies alone would move everything, and wait."""
    if len(prices) <= num:
        return list(prices)
    return [prices[place * (len(prices) - 1) // (num - 1)] for place in range(num)]


def _in_the_way(chosen: Item, item: Item) -> bool:
    """Say whether something chosen must go before an item can be added."""
    if chosen.storage == item.storage:
        return True
    return _excludes(item, chosen) or _excludes(chosen, item)


def _excludes(recipe: Item, other: Item) -> bool:
    """Say whether something cannot be chosen beside a recipe: what it holds, and what it would fetch on its way."""
    if isinstance(recipe, Movable):
        return False
    return other.storage in recipe.held or (isinstance(other, Movable) and other.storage in recipe.through)


def _forgotten(choice: Choice, chance: random.Random) -> list[Item]:
    """Return a part of what is chosen: here and there, or all in one place."""
    items = choice.items
    if not items or chance.random() < 0.5:
        share = chance.choice(_FORGOTTEN)
        return [item for item in items if chance.random() < share]
    middle, around = choice.start(chance.choice(items)), chance.choice(_AROUND_OPS)
    return [item for item in items if abs(choice.start(item) - middle) <= around]


def _hindrance(choice: Choice, fixed: Item | None) -> Item | None:
    """Return a recipe without which less is held when most is: what it starts from is there for it, or passes by."""
    fullest = int(choice.live_bytes.argmax())
    best: tuple[int, int, Item] | None = None
    for recipe in choice.recipes.values():
        if recipe is fixed or not choice.burdens(recipe, fullest):
            continue
        twin = choice.copy()
        twin.drop(recipe)
        held = int(twin.live_bytes[fullest]), int(np.maximum(twin.live_bytes, 0).sum())
        if held[0] < int(choice.live_bytes[fullest]) and (best is None or held < best[:2]):
            best = (*held, recipe)
    return None if best is None else best[2]
