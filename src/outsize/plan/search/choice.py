"""What a step holds while storages are moved and recipes are taken: kept up to date as single ones come and go.

Copies are taken to be done when somebody waits for them, so this is the least that a choice can hold; what waiting
costs is for the timeline to say.

What is recomputed may be made from what is recomputed itself. The source is then made when the first of those that
start from it is made, and waits for its own use:

    needed      c at 20, made from b; b at 23, made from a; a at 26, kept
    made        b and c at 20
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from outsize.plan.cost import Changed, StepCost
from outsize.plan.memory import Movable, StorageRecipe
from outsize.plan.search.timeline import Bytes

Item = Movable | StorageRecipe
_Span = tuple[int, int, int]  # from operation, to before operation, bytes (more or less held)


@dataclass(frozen=True)
class PlainStep:
    """A step before anything is chosen."""

    cost: StepCost
    host_bytes: float = math.inf  # of host memory, that moved storages may fill

    @cached_property
    def live_bytes(self) -> Bytes:
        """What is held during each operation."""
        return np.array(self.cost.live_bytes(), np.int64)

    def away(self, item: Item) -> _Span:
        """Return between which operations something is not there if nothing else is chosen, and its bytes."""
        if isinstance(item, Movable):
            return item.free, max(item.free, item.need), item.size_bytes
        let_go = self.cost.let_go[item.storage]
        return let_go, max(let_go, item.back), self.cost.by_index[item.storage].size_bytes

    def passing_bytes(self, recipe: StorageRecipe, op: int) -> int:
        """Return by how much what is made on the way to a recipe's tensor exceeds what the operation makes after it."""
        return max(0, recipe.passing_bytes - self.cost.made_bytes[op])


class Choice:
    """Storages that are moved and recipes that are taken."""

    def __init__(self, plain: PlainStep) -> None:
        self._plain = plain
        self._lives = plain.cost.by_index
        self.moving: dict[int, Movable] = {}
        self.recipes: dict[int, StorageRecipe] = {}
        self._starts: dict[int, int] = {}  # of all that is chosen: from which operation it is there again
        self._users: dict[int, set[int]] = {}  # sources, and which chosen recipes start from them
        self._held: dict[int, list[int]] = {}  # sources that live longer for recipes, and until when
        self._through: list[int] = []  # storages that recipes make on their way
        self.live_bytes = plain.live_bytes.copy()

    def copy(self) -> Choice:
        """Return one that can be changed apart from this."""
        twin = Choice.__new__(Choice)
        twin._plain, twin._lives, twin.live_bytes = self._plain, self._lives, self.live_bytes.copy()
        twin.moving, twin.recipes, twin._starts = dict(self.moving), dict(self.recipes), dict(self._starts)
        twin._users = {storage: set(users) for storage, users in self._users.items()}
        twin._held = {storage: list(ends) for storage, ends in self._held.items()}
        twin._through = list(self._through)
        return twin

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once."""
        return int(self.live_bytes.max(initial=0))

    @property
    def items(self) -> list[Item]:
        """All that is chosen."""
        return [*self.moving.values(), *self.recipes.values()]

    def start(self, item: Item) -> int:
        """Return the operation from which something chosen is there again at the latest."""
        return self._starts[item.storage]

    def reach(self, item: Item) -> int:
        """Return how many saved tensors before its turn something would be made at most, if this were added."""
        cost = self._plain.cost
        made = {each: op for each, op in self._earlier(item).items() if each not in self.moving}
        return max((cost.asked[op] - cost.packed[each] for each, op in made.items()), default=0)

    def burdens(self, recipe: StorageRecipe, op: int) -> bool:
        """Say whether something may be held during an operation for the sake of a chosen recipe alone."""
        start = self._starts[recipe.storage]
        if start > op:
            return False
        early = any(self._starts.get(each, op + 1) <= op < self._own(each) for each in recipe.leaves)
        return early or bool(recipe.held) or (start == op and recipe.passing_bytes > 0)

    def _own(self, storage: int) -> int:
        """Return the operation that needs a storage for itself."""
        return self.moving[storage].need if storage in self.moving else self.recipes[storage].back

    def waits(self, recipe: StorageRecipe) -> int:
        """Return how many saved tensors before its own turn a chosen recipe's tensor is made to stay."""
        cost = self._plain.cost
        return max(0, cost.asked[self._starts[recipe.storage]] - cost.packed[recipe.storage])

    def changed(self) -> Changed:
        """Return what the recipes change in the lives of storages."""
        recomputed = {storage: self._starts[storage] for storage in self.recipes}
        passing: dict[int, int] = {}
        for storage, recipe in self.recipes.items():
            start = self._starts[storage]
            passing[start] = passing.get(start, 0) + self._plain.passing_bytes(recipe, start)
        return Changed(
            recomputed, {storage: max(ends) for storage, ends in self._held.items()}, passing=passing
        )

    def extra_seconds(self, seconds: Callable[[StorageRecipe], float]) -> dict[int, float]:
        """Return the time of what is recomputed, by operation."""
        extra: dict[int, float] = {}
        for storage, recipe in self.recipes.items():
            start = self._starts[storage]
            extra[start] = extra.get(start, 0.0) + seconds(recipe)
        return extra

    def on_the_way(self) -> tuple[list[Movable], Bytes]:
        """Return what is moved, needed when the first recipe needs it, and what is held besides."""
        others, moving = self.live_bytes.copy(), []
        for storage, each in self.moving.items():
            need = self._starts[storage]
            others[each.born : each.free] -= each.size_bytes
            others[need : each.dies] -= each.size_bytes
            moving.append(each if need == each.need else replace(each, need=need))
        return moving, others

    def has(self, item: Item) -> bool:
        """Say whether something is chosen."""
        if isinstance(item, Movable):
            return item.storage in self.moving
        return self.recipes.get(item.storage) is item  # and not another for the same storage

    def admits(self, item: Item) -> bool:
        """Say whether something can be added: not where it would be both recomputed and moved."""
        if item.storage in self._starts or item.storage in self._held:
            return False
        if isinstance(item, Movable):
            host_bytes = sum(each.size_bytes for each in self.moving.values()) + item.size_bytes
            # one that is made on the way to others would come back for each of them
            return host_bytes <= self._plain.host_bytes and item.storage not in self._through
        return self._starts.keys().isdisjoint(item.held) and self.moving.keys().isdisjoint(item.through)

    def take(self, item: Item) -> None:
        """Add something that is admitted."""
        earlier = self._earlier(item)
        self._apply(self._spans(item, earlier), 1)
        self._starts.update(earlier)
        if isinstance(item, Movable):
            self.moving[item.storage] = item
            return
        self.recipes[item.storage] = item
        self._through += item.through
        for source in item.leaves:
            self._users.setdefault(source, set()).add(item.storage)
        for source in item.held:
            self._held.setdefault(source, []).append(item.back + 1)

    def drop(self, item: Item) -> None:
        """Take something out again."""
        if isinstance(item, Movable):
            del self.moving[item.storage]
        else:
            del self.recipes[item.storage]
            for source in item.through:
                self._through.remove(source)
            for source in item.leaves:
                self._users[source].remove(item.storage)
            for source in item.held:
                self._held[source].remove(item.back + 1)
                if not self._held[source]:
                    del self._held[source]
        earlier = {item.storage: self._starts.pop(item.storage), **self._later(item)}
        self._apply(self._spans(item, earlier), -1)

    def can_go(self, item: Item, budget_bytes: float) -> bool:
        """Say whether the budget is surely kept without something that is chosen."""
        start, _, size_bytes = self._plain.away(item)
        there = self.live_bytes[start : self._starts[item.storage]]
        return int(there.max(initial=0)) + size_bytes <= budget_bytes

    def gain_bytes(self, item: Item, budget_bytes: float) -> float:
        """Return by how much less the budget is exceeded with it, summed over all operations."""
        gain = 0.0
        for start, end, more in self._spans(item, self._earlier(item)):
            over = self.live_bytes[start:end] - (budget_bytes - max(0, more))
            both = float(np.minimum(np.maximum(over, 0), abs(more)).sum())
            gain += both if more < 0 else -both
        return gain

    def _earlier(self, item: Item) -> dict[int, int]:
        """Return from when an item that is not chosen is there, and what of the chosen must be there earlier for it."""
        own = item.need if isinstance(item, Movable) else item.back
        start = min([own, *(self._starts[user] for user in self._users.get(item.storage, ()))])
        earlier = {item.storage: start}
        todo = [] if isinstance(item, Movable) else list(item.leaves)
        while todo:
            source = todo.pop()
            if source not in earlier and self._starts.get(source, start) > start:
                earlier[source] = start
                todo += self.recipes[source].leaves if source in self.recipes else ()
        return earlier

    def _later(self, item: Item) -> dict[int, int]:
        """Let the sources of an item that was dropped be there later; return from when they were."""
        before: dict[int, int] = {}
        todo = [] if isinstance(item, Movable) else list(item.leaves)
        while todo:
            source = todo.pop()
            if source not in self._starts:
                continue
            start = min([self._own(source), *(self._starts[user] for user in self._users.get(source, ()))])
            if start > self._starts[source]:
                before.setdefault(source, self._starts[source])
                self._starts[source] = start
                todo += self.recipes[source].leaves if source in self.recipes else ()
        return before

    def _spans(self, item: Item, earlier: Mapping[int, int]) -> list[_Span]:
        """Return what an item that is not chosen changes in what is held, if these are there earlier."""
        start, size_bytes = earlier[item.storage], self._lives[item.storage].size_bytes
        spans = [(self._plain.away(item)[0], start, -size_bytes)]
        if isinstance(item, StorageRecipe):
            for source in item.held:
                until = max([self._lives[source].dies, *self._held.get(source, ())])
                spans.append((until, item.back + 1, self._lives[source].size_bytes))
            spans.append((start, start + 1, self._plain.passing_bytes(item, start)))
        for source, begin in earlier.items():
            if source == item.storage:
                continue
            later = self._starts[source]
            spans.append((begin, later, self._lives[source].size_bytes))
            if source in self.recipes:
                recipe = self.recipes[source]
                spans.append((begin, begin + 1, self._plain.passing_bytes(recipe, begin)))
                spans.append((later, later + 1, -self._plain.passing_bytes(recipe, later)))
        return [span for span in spans if span[0] < span[1] and span[2]]

    def _apply(self, spans: Sequence[_Span], sign: int) -> None:
        for start, end, more in spans:
            self.live_bytes[start:end] += sign * more
