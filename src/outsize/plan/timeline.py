"""Plays a step with storages on their way to host memory and back: when each leaves and returns, and who waits.

Two queues, one for each direction; a copy begins when it is asked for and the one before has ended:

    compute  |--- forward ------------------------|--- backward ---------------------------|
    out        |a |b   |c         |.waits.|                                                  in the order of packing
    in                                                 |c         |b   |a |                  in the order of need

Memory changes hands where the program says so and not when a copy happens to end, so that what is held at any
operation is known exactly. All copies out have ended when forward has: the two directions are never under way at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outsize.plan.plan import Moved, Swap
from outsize.plan.swap import Movable, Points
from outsize.plan.times import Rates

Seconds = NDArray[np.float64]
Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class Link:
    """The way between device and host: bytes in a second, and what starting a copy costs."""

    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    start_s: float = 10e-6

    @classmethod
    def of(cls, rates: Rates) -> Link | None:
        """Return the link of a machine; None where there is none, or nobody knows how fast it is."""
        out, back = rates.to_host_bytes_per_s, rates.to_device_bytes_per_s
        return None if out is None or back is None else cls(out, back)

    def out_s(self, size_bytes: int) -> float:
        """Return the time of a copy to the host."""
        return self.start_s + size_bytes / self.to_host_bytes_per_s

    def in_s(self, size_bytes: int) -> float:
        """Return the time of a copy to the device."""
        return self.start_s + size_bytes / self.to_device_bytes_per_s


@dataclass(frozen=True)
class Timeline:
    """When each storage is away, and what that costs."""

    away: tuple[tuple[Movable, int, int], ...]  # gone before the first operation, there again from the second
    stall_s: float
    live_bytes: Bytes  # during each operation

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once."""
        return int(self.live_bytes.max(initial=0))

    def twice(self) -> dict[int, tuple[int, int]]:
        """Return the changed lives, as a step's cost takes them."""
        return {each.storage: (gone, back) for each, gone, back in self.away}

    def as_swap(self, points: Points) -> Swap:
        """Return the setting of a plan."""
        moved = tuple(
            Moved(each.key, each.size_bytes, points.packings.get(gone), points.unpackings.get(back))
            for each, gone, back in sorted(self.away, key=lambda item: _turn(item[0]))
        )
        # all of it lies on the host when forward has ended
        return Swap(moved, sum(each.size_bytes for each in moved))


def _turn(each: Movable) -> tuple[int, int]:
    """Say when it is a storage's turn to come back: in the order of need."""
    return each.need, each.packed


def play(
    points: Points,
    begins_s: Seconds,
    others: Bytes,
    moving: Sequence[Movable],
    link: Link,
    budget_bytes: float,
) -> Timeline | None:
    """Return when each storage leaves and returns so that the budget is kept with the least waiting; None: it cannot.

    `begins_s` is when each operation begins if nothing waits, `others` what is held besides during each.
    Forward waits for a copy only where the budget asks for its memory. Backward fetches as early as memory allows:
    what is needed first takes what is free first, so that the queue is never idle for want of foresight.
    """
    moving = sorted(moving, key=lambda each: each.packed)
    left = _leave(points, begins_s, others, moving, link, budget_bytes)
    if left is None:
        return None
    gone, stall_s = left
    live = others.copy()
    for each in moving:
        live[each.born : gone[each.storage]] += each.size_bytes
        live[each.need : each.dies] += each.size_bytes
    if live.max(initial=0) > budget_bytes:
        return None
    back, late_s = _return(points, begins_s, live, moving, link, budget_bytes)
    away = tuple((each, gone[each.storage], back[each.storage]) for each in moving)
    return Timeline(away, stall_s + late_s, live)


def _leave(
    points: Points,
    begins_s: Seconds,
    others: Bytes,
    moving: Sequence[Movable],
    link: Link,
    budget_bytes: float,
) -> tuple[dict[int, int], float] | None:
    """Return the operation before which each storage is gone, and how long forward waits for that."""
    bounds = list(points.packings)
    if not moving or not bounds:
        return {}, 0.0
    born = np.zeros(points.turn, np.int64)
    for each in moving:
        born[each.born] += each.size_bytes
    full = others[: points.turn] + np.cumsum(born)  # if none had left
    fullest = [*np.maximum.reduceat(full, bounds).tolist(), 0]  # from each packing to the next
    gone: dict[int, int] = {}
    pending: list[tuple[Movable, float]] = []  # with the end of the copy, in order
    left_bytes, stall_s, link_s, place = 0, 0.0, 0.0, 0
    for bound, full_bytes in zip([*bounds, points.turn], fullest, strict=True):
        now_s = float(begins_s[bound]) + stall_s
        staying: list[tuple[Movable, float]] = []
        pressed = full_bytes - left_bytes > budget_bytes or bound == points.turn
        is_due = bool(pending) and (pressed or pending[0][1] <= now_s)
        for each, end_s in pending if is_due else ():
            pressed = full_bytes - left_bytes > budget_bytes or bound == points.turn
            if each.free <= bound and (end_s <= now_s or pressed):
                now_s = max(now_s, end_s)
                gone[each.storage] = bound
                left_bytes += each.size_bytes
            else:
                staying.append((each, end_s))
        pending = staying if is_due else pending
        if full_bytes - left_bytes > budget_bytes:
            return None
        stall_s = now_s - float(begins_s[bound])
        while place < len(moving) and moving[place].packed == bound:
            link_s = max(link_s, now_s) + link.out_s(moving[place].size_bytes)
            pending.append((moving[place], link_s))
            place += 1
    return gone, stall_s


def _return(
    points: Points, begins_s: Seconds, live: Bytes, moving: Sequence[Movable], link: Link, budget_bytes: float
) -> tuple[dict[int, int], float]:
    """Return the operation from which each storage is there again, and how long backward waits; adds to `live`."""
    bounds = np.fromiter(points.unpackings, np.int64, len(points.unpackings))
    back: dict[int, int] = {}
    stalls: list[tuple[int, float]] = []  # operation, seconds
    # times are counted from the start of backward without the waiting of forward, which moves all of them alike
    link_s, earliest = 0.0, points.turn
    for each in sorted(moving, key=_turn):
        full = np.flatnonzero(live[earliest : each.need] > budget_bytes - each.size_bytes)
        start = earliest + int(full[-1]) + 1 if full.size else earliest
        place = int(np.searchsorted(bounds, start))
        begin = min(int(bounds[place]), each.need) if place < len(bounds) else each.need
        live[begin : each.need] += each.size_bytes
        back[each.storage] = earliest = begin
        asked_s = float(begins_s[begin]) + sum(seconds for op, seconds in stalls if op <= begin)
        link_s = max(link_s, asked_s) + link.in_s(each.size_bytes)
        needed_s = float(begins_s[each.need]) + sum(seconds for _, seconds in stalls)
        if link_s > needed_s:
            stalls.append((each.need, link_s - needed_s))
    return back, sum(seconds for _, seconds in stalls)


def beginnings(op_s: Sequence[float], extra_s: Mapping[int, float]) -> Seconds:
    """Return when each operation begins, and when the last has ended.

    What is made again for an operation takes its extra time: whoever waits, waits before both.
    """
    times = np.array(op_s, np.float64)
    for op, seconds in extra_s.items():
        times[op] += seconds
    result: Seconds = np.concatenate(([0.0], np.cumsum(times)))
    return result
