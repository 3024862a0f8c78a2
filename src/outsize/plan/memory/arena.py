"""Follows torch's allocator through a step: what it holds for tensors that come and go, gaps between them included.

All tensors of a step lie in one range of addresses, which grows by whole pages and never shrinks. Each takes the
smallest gap that it fits into, at its lower end, and leaves a gap that grows together with those beside it:

    address   |weights |a    |b  |.....|c          |..|d   |
                               '-- too small for e, so the range grows: more is held than tensors take

How much more hangs on the order in which they come and go, so of two plans with the same peak one may fit and the other
not. Workspace of convolutions, which no shape tells, moves everything that comes after it: so the step is followed
several times, each time with another size of it where none was seen, and the worst is what counts.

The range is what torch calls an expandable segment; the command line asks for them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import TypeVar

import numpy as np

from outsize.plan.cost import NOTHING, Changed, StepCost
from outsize.plan.step import Storage

_PAGE_BYTES, _SMALL_PAGE_BYTES = 20 * 2**20, 2 * 2**20
_SMALL_BYTES = 2**20  # tensors up to this lie in a range of their own, with pages of their own
_WORKSPACES = (0, 8 * 2**20, 24 * 2**20)
_FIRST, _SECOND, _LAST = range(
    3
)  # in the order of one operation: what comes back for it, what is made on the way, own

_Come = tuple[int, int, int]  # order, number and bytes of a storage
_Go = tuple[int, int]  # number of a storage, and at which operation it came
_Thing = TypeVar("_Thing", bound=tuple[int, ...])


class Arena:
    """A step's tensors as they come and go, to be asked again and again what a plan changes in that.

    What a plan leaves as it is was put in order once.
    """

    def __init__(self, cost: StepCost) -> None:
        self._cost, num_ops = cost, len(cost.facts.ops)
        self._small_bytes = np.zeros(num_ops + 1, np.int64)
        self._comes: list[list[_Come]] = [[] for _ in range(num_ops)]
        self._goes: list[list[_Go]] = [[] for _ in range(num_ops + 1)]
        self._seen_bytes = [op.workspace_bytes for op in cost.facts.ops]
        self._with_workspace = ["convolution" in op.kind for op in cost.facts.ops]
        self._guesses = (0,) if any(self._seen_bytes) else _WORKSPACES
        for storage in cost.facts.storages:
            for start, end in self._spans(storage, NOTHING):
                if storage.size_bytes <= _SMALL_BYTES:
                    self._small_bytes[[start, end]] += storage.size_bytes, -storage.size_bytes
                else:
                    self._comes[start].append(_come(storage, start))
                    self._goes[end].append((storage.index, start))
        for each in self._comes:
            each.sort()

    def held_bytes(self, changed: Changed, enough_bytes: float = math.inf) -> int:
        """Return the most that the allocator holds in a step; what is known so far once that is more than enough."""
        comes, goes, small_bytes = self._comes.copy(), self._goes.copy(), self._small_bytes.copy()
        for index in {*changed.recomputed, *changed.held, *changed.twice}:
            storage = self._cost.by_index[index]
            for sign, spans in ((-1, self._spans(storage, NOTHING)), (1, self._spans(storage, changed))):
                for start, end in spans:
                    if storage.size_bytes <= _SMALL_BYTES:
                        small_bytes[start] += sign * storage.size_bytes
                        small_bytes[end] -= sign * storage.size_bytes
                    else:
                        comes[start] = _with(comes[start], _come(storage, start), sign)
                        goes[end] = _with(goes[end], (index, start), sign)
        for op, passing_bytes in changed.passing.items():
            if passing_bytes > _SMALL_BYTES:
                comes[op] = _with(comes[op], (_SECOND, -1 - op, passing_bytes), 1)
                goes[op + 1] = _with(goes[op + 1], (-1 - op, op), 1)
        lasting_bytes = self._cost.lasting_bytes
        lasting_bytes += _paged(int(np.cumsum(small_bytes).max(initial=0)), _SMALL_PAGE_BYTES)
        most_bytes = 0
        for guess in self._guesses:
            most_bytes = max(most_bytes, self._most_bytes(comes, goes, guess, enough_bytes - lasting_bytes))
            if lasting_bytes + most_bytes > enough_bytes:
                break
        return lasting_bytes + most_bytes

    def _spans(self, storage: Storage, changed: Changed) -> list[tuple[int, int]]:
        """Return when a storage comes and goes within the step; what was there before does neither."""
        num_ops = len(self._cost.facts.ops)
        spans = ((start, min(dies, num_ops)) for start, dies in self._cost.spans_of(storage, changed))
        return [(start, end) for start, end in spans if 0 <= start < end]

    def _most_bytes(
        self, all_come: list[list[_Come]], all_go: list[list[_Go]], workspace_bytes: int, enough_bytes: float
    ) -> int:
        """Return the end of the addresses, if convolutions take what was seen, or so much workspace."""
        area = _Area()
        placed: dict[_Go, tuple[int, int]] = {}
        for op, (comes, goes) in enumerate(zip(all_come, all_go, strict=False)):
            for key in goes:
                area.give(*placed.pop(key))
            for _, index, size_bytes in comes:
                placed[index, op] = area.take(size_bytes), size_bytes
            passing_bytes = self._seen_bytes[op] or workspace_bytes * self._with_workspace[op]
            if passing_bytes > _SMALL_BYTES:
                area.give(area.take(passing_bytes), passing_bytes)
            if area.end > enough_bytes:
                break
        return area.end


def _come(storage: Storage, start: int) -> _Come:
    return _LAST if start == storage.born else _FIRST, storage.index, storage.size_bytes


def _with(things: list[_Thing], thing: _Thing, sign: int) -> list[_Thing]:
    """Return an ordered list with something more, or without it."""
    if sign < 0:
        return [each for each in things if each != thing]
    return sorted([*things, thing])


def _paged(num_bytes: int, page_bytes: int) -> int:
    return -(-num_bytes // page_bytes) * page_bytes


class _Area:
    """A range of addresses that grows, and its gaps: by size, and by where they begin and end."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._sizes: dict[int, int] = {}
        self._begins: dict[int, int] = {}

    def take(self, size_bytes: int) -> int:
        """Return the address of so many bytes."""
        place = bisect_left(self._by_size, (size_bytes, -1))
        if place == len(self._by_size):
            last_bytes = self.end - self._begins.get(self.end, self.end)
            more_bytes = _paged(size_bytes - last_bytes, _PAGE_BYTES)
            self.end += more_bytes
            self.give(self.end - more_bytes, more_bytes)
            place = bisect_left(self._by_size, (size_bytes, -1))
        found_bytes, address = self._by_size.pop(place)
        del self._sizes[address], self._begins[address + found_bytes]
        if found_bytes > size_bytes:
            self._add(address + size_bytes, found_bytes - size_bytes)
        return address

    def give(self, address: int, size_bytes: int) -> None:
        """Take bytes back; they become one gap with those beside them."""
        before = self._begins.get(address)
        if before is not None:
            self._remove(before)
            address, size_bytes = before, address + size_bytes - before
        behind = address + size_bytes
        if behind in self._sizes:
            size_bytes += self._sizes[behind]
            self._remove(behind)
        self._add(address, size_bytes)

    def _add(self, address: int, size_bytes: int) -> None:
        self._sizes[address] = size_bytes
        self._begins[address + size_bytes] = address
        insort(self._by_size, (size_bytes, address))

    def _remove(self, address: int) -> None:
        size_bytes = self._sizes.pop(address)
        del self._begins[address + size_bytes]
        self._by_size.pop(bisect_left(self._by_size, (size_bytes, address)))
