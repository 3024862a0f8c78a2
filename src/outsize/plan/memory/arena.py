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

from bisect import bisect_left, insort
from itertools import accumulate

from outsize.plan.cost import Changed, StepCost

_PAGE_BYTES, _SMALL_PAGE_BYTES = 20 * 2**20, 2 * 2**20
_SMALL_BYTES = 2**20  # tensors up to this lie in a range of their own, with pages of their own
_WORKSPACES = (0, 8 * 2**20, 24 * 2**20)
_FIRST, _SECOND, _LAST = range(
    3
)  # in the order of one operation: what comes back for it, what is made on the way, own


def held_bytes(cost: StepCost, changed: Changed) -> int:
    """Return the most that the allocator holds in a step; what was there before lies without gaps."""
    come_and_go = _ComeAndGo(cost, changed)
    guesses = (0,) if any(op.workspace_bytes for op in cost.facts.ops) else _WORKSPACES
    return come_and_go.lasting_bytes + max(map(come_and_go.most_bytes, guesses))


class _ComeAndGo:
    """What is taken and given back at each operation of a step."""

    def __init__(self, cost: StepCost, changed: Changed) -> None:
        num_ops = len(cost.facts.ops)
        self._comes: list[list[tuple[int, int, int]]] = [[] for _ in range(num_ops)]
        self._goes: list[list[tuple[int, int]]] = [[] for _ in range(num_ops + 1)]
        self._seen_bytes = [op.workspace_bytes for op in cost.facts.ops]
        self._with_workspace = ["convolution" in op.kind for op in cost.facts.ops]
        self.lasting_bytes = 0
        small = [0] * (num_ops + 1)
        for storage, start, dies in cost.spans(changed):
            end = min(dies, num_ops)
            if start < 0:
                self.lasting_bytes += storage.size_bytes
            elif storage.size_bytes <= _SMALL_BYTES:
                small[start] += storage.size_bytes
                small[end] -= storage.size_bytes
            elif start < end:
                order = _LAST if start == storage.born else _FIRST
                self._add(order, storage.index, storage.size_bytes, start, end)
        for op, passing_bytes in changed.passing.items():
            if passing_bytes > _SMALL_BYTES:
                self._add(_SECOND, -1 - op, passing_bytes, op, op + 1)
        self._small_bytes = _paged(max(accumulate(small)), _SMALL_PAGE_BYTES)

    def _add(self, order: int, index: int, size_bytes: int, start: int, end: int) -> None:
        self._comes[start].append((order, index, size_bytes))
        self._goes[end].append((index, start))

    def most_bytes(self, workspace_bytes: int) -> int:
        """Return the most that is held for it, if convolutions take what was seen, or so much workspace."""
        area = _Area()
        placed: dict[tuple[int, int], tuple[int, int]] = {}
        for op, (comes, goes) in enumerate(zip(self._comes, self._goes, strict=False)):
            for key in goes:
                area.give(*placed.pop(key))
            for _, index, size_bytes in sorted(comes):
                placed[index, op] = area.take(size_bytes), size_bytes
            passing_bytes = self._seen_bytes[op] or workspace_bytes * self._with_workspace[op]
            if passing_bytes > _SMALL_BYTES:
                area.give(area.take(passing_bytes), passing_bytes)
        return area.end + self._small_bytes


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
