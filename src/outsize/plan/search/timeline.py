"""Plays a step with storages on their way to host memory and back: when each leaves and returns, and who waits.

Two queues, one for each direction; a copy begins when it is asked for and the one before has ended:

    compute  |--- forward ------------------------|--- backward ---------------------------|
    out        |a |b   |c         |d       |e  |f          |                                 in the order of packing
    in                                                 |e  |d       |c         |b   |a |      in the order of need

Memory changes hands where the program says so and not when a copy happens to end, so that what is held at any
operation is known exactly. Copies out may still run when backward begins, as long as memory allows that. The two
directions are taken not to disturb each other: on one machine both at once ran at 85 % of what one does alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from outsize.plan.memory import Movable, Points
from outsize.plan.plan import PlannedSwap, Swap
from outsize.plan.times import Rates

# Of what a link can do. Copies that just hide by the plan do not where compute is a little faster: steps planned for
# all of it waited 5 ms for each GiB (two networks, recorded, one H200), and leaving a tenth costs next to nothing.
_COUNTED_ON = 0.9
# Shares of the time until a copy out ends, by which its storage may stay longer where memory allows.
_LATER = (0.1, 0.25, 0.5)

Seconds = NDArray[np.float64]
Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class Link:
    """The way between device and host: bytes in a second that a plan counts on, and what starting a copy costs."""

    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    start_s: float = 10e-6

    @classmethod
    def of(cls, rates: Rates, num_gpus: int = 1) -> Link | None:
        """Return the link of a machine; None where there is none, or nobody knows how fast it is.

        Several GPUs at work on one step copy at the same time; how fast that is may be known.
        """
        out, back = rates.to_host_bytes_per_s, rates.to_device_bytes_per_s
        if out is None or back is None:
            return None
        crowded = (rates.crowded_bytes_per_s if num_gpus > 1 else None) or math.inf
        return cls(*(_COUNTED_ON * min(each, crowded) for each in (out, back)))

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
    ends_s: Mapping[int, float]  # of copies out, by storage

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once."""
        return int(self.live_bytes.max(initial=0))

    def twice(self) -> dict[int, tuple[int, int]]:
        """Return the changed lives, as a step's cost takes them."""
        return {each.storage: (gone, back) for each, gone, back in self.away}

    def as_swap(self, points: Points) -> Swap:
        """Return the setting of a plan."""
        moved = []
        for each, gone, back in sorted(self.away, key=lambda item: (item[2], _turn(item[0]))):
            late = gone > points.turn
            release = points.first_unpackings[gone] if late else points.packings.get(gone)
            moved.append(PlannedSwap(each.key, each.size_bytes, release, points.unpackings.get(back), late))
        # all of it lies on the host when forward has ended, or is on its way there
        return Swap(tuple(moved), sum(each.size_bytes for each in moved))


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
    Compute waits for a copy out only where the budget asks for its memory. Backward fetches as early as memory allows:
    what is needed first takes what is free first, so that the queue is never idle for want of foresight. What has not
    left when it is needed again is not moved at all.
    """
    moving, others = sorted(moving, key=lambda each: each.packed), others.copy()
    while (left := _leave(points, begins_s, others, moving, link, budget_bytes)) is not None:
        staying = [each for each in moving if each.storage not in left.gone]
        if not staying:
            break
        for each in staying:
            others[each.born : each.dies] += each.size_bytes
        moving = [each for each in moving if each.storage in left.gone]
    if left is None:
        return None
    live = others
    for each in moving:
        live[each.born : left.gone[each.storage]] += each.size_bytes
        live[each.need : each.dies] += each.size_bytes
    if live.max(initial=0) > budget_bytes:
        return None
    found = []
    for returns in (_early, _overtaking):
        held = live.copy()
        back = returns(points, held, moving, left, _Paced(begins_s, link), budget_bytes)
        away = tuple((each, left.gone[each.storage], back[each.storage]) for each in moving)
        late_s = _late_seconds(away, left, points.turn, begins_s, link)
        found.append(Timeline(away, left.stall_s + late_s, held, left.ends_s))
        if late_s == 0:
            break
    return min(found, key=lambda each: each.stall_s)


def postponed(points: Points, timeline: Timeline, begins_s: Seconds, budget_bytes: float) -> Timeline:
    """Let storages stay beyond the end of their copies in forward, as long as memory allows.

    Compute waits where memory is given back before a copy has ended, and a real one ends later than planned: the link
    may be slower, and compute faster. All have a little time before one has more.
    """
    bounds = np.array([*(each for each in points.packings if each < points.turn), points.turn])
    gone = {each.storage: at for each, at, _ in timeline.away}
    live = timeline.live_bytes.copy()
    moved = sorted((each for each, at, _ in timeline.away if at < points.turn), key=lambda each: each.packed)
    for share in _LATER:
        for each in moved:
            at = gone[each.storage]
            # the end of a copy has the waits before it, the beginnings have none: a little later than the share says
            until = int(np.searchsorted(begins_s, (1 + share) * timeline.ends_s[each.storage]))
            until = min(until, points.turn)
            full = np.flatnonzero(live[at:until] > budget_bytes - each.size_bytes)
            until = at + int(full[0]) if full.size else until
            place = int(np.searchsorted(bounds, until, side="right")) - 1
            later = max(at, int(bounds[place])) if place >= 0 else at
            live[at:later] += each.size_bytes
            gone[each.storage] = later
    away = tuple((each, gone[each.storage], back) for each, _, back in timeline.away)
    return replace(timeline, away=away, live_bytes=live)


@dataclass(frozen=True)
class _Paced:
    """When operations begin, and how long copies take."""

    begins_s: Seconds
    link: Link


@dataclass(frozen=True)
class _Left:
    """The operation before which each storage is gone, when its copy ends, and how long forward waits for that."""

    gone: dict[int, int]
    ends_s: dict[int, float]
    stall_s: float


def _leave(
    points: Points,
    begins_s: Seconds,
    others: Bytes,
    moving: Sequence[Movable],
    link: Link,
    budget_bytes: float,
) -> _Left | None:
    """Let each storage go when its copy has ended, or where the budget waits for it; None: that is not enough."""
    live = others.copy()  # if none had left
    for each in moving:
        live[each.born : each.dies] += each.size_bytes
    after = [bound for bound in points.unpackings if bound > points.turn]
    bounds = [*points.packings, points.turn, *(after if moving else ()), len(live)]
    left = _Left({}, {}, 0.0)
    pending: list[Movable] = []  # in the order that their copies end
    stall_s, forward_s, link_s, place = 0.0, 0.0, 0.0, 0
    for bound, following in pairwise(bounds):
        now_s = float(begins_s[bound]) + stall_s
        full_bytes = int(live[bound:following].max(initial=0))
        for each in list(pending):
            ended = left.ends_s[each.storage] <= now_s
            if not ended and full_bytes <= budget_bytes:
                break
            if each.free <= bound < each.need:
                now_s = max(now_s, left.ends_s[each.storage])
                left.gone[each.storage] = bound
                live[bound : each.need] -= each.size_bytes
                full_bytes = int(live[bound:following].max(initial=0))
                pending.remove(each)
        if full_bytes > budget_bytes:
            return None
        stall_s = now_s - float(begins_s[bound])
        forward_s = stall_s if bound <= points.turn else forward_s
        while place < len(moving) and moving[place].packed == bound:
            link_s = max(link_s, now_s) + link.out_s(moving[place].size_bytes)
            left.ends_s[moving[place].storage] = link_s
            pending.append(moving[place])
            place += 1
    return _Left(left.gone, left.ends_s, forward_s)


def _early(
    points: Points, live: Bytes, moving: Sequence[Movable], left: _Left, _: _Paced, budget_bytes: float
) -> dict[int, int]:
    """Ask for each storage as early as memory allows, in the order of need; adds it to `live`.

    Returns the operation from which each is there again.
    """
    bounds = np.fromiter(points.unpackings, np.int64, len(points.unpackings))
    back: dict[int, int] = {}
    earliest = points.turn
    for each in sorted(moving, key=_turn):
        earliest = max(earliest, left.gone[each.storage])
        full = np.flatnonzero(live[earliest : each.need] > budget_bytes - each.size_bytes)
        start = earliest + int(full[-1]) + 1 if full.size else earliest
        place = int(np.searchsorted(bounds, start))
        begin = min(int(bounds[place]), each.need) if place < len(bounds) else each.need
        live[begin : each.need] += each.size_bytes
        back[each.storage] = earliest = begin
    return back


def _overtaking(
    points: Points, live: Bytes, moving: Sequence[Movable], left: _Left, pace: _Paced, budget_bytes: float
) -> dict[int, int]:
    """Ask for a storage only when the queue would else run dry, and let it pass others that have not even left.

    Adds it to `live`, and returns the operation from which each is there again.
    """
    waiting = sorted(moving, key=_turn)
    bounds = list(points.unpackings)
    back: dict[int, int] = {}
    link_s = 0.0
    for bound, following in zip(bounds, [*bounds[1:], len(live)], strict=True):
        now_s, next_s = (float(pace.begins_s[op]) + left.stall_s for op in (bound, following))
        for each in list(waiting):
            is_due = each.need <= bound
            if not is_due and (link_s >= next_s or left.gone[each.storage] > bound):
                continue
            if not is_due and int(live[bound : each.need].max(initial=0)) + each.size_bytes > budget_bytes:
                break
            live[bound : each.need] += each.size_bytes
            back[each.storage] = bound
            waiting.remove(each)
            link_s = max(link_s, now_s) + pace.link.in_s(each.size_bytes)
    return back


def _late_seconds(
    away: Sequence[tuple[Movable, int, int]], left: _Left, turn: int, begins_s: Seconds, link: Link
) -> float:
    """Return how long backward waits: for copies out where memory is asked for, and for copies back."""
    # at one operation memory is given back, then who is on the way and needed is waited for, then others are asked for
    events: list[tuple[int, int, tuple[int, int], Movable]] = []
    for each, gone, back in away:
        if gone > turn:
            events.append((gone, 0, _turn(each), each))
        events.append((back, 2, _turn(each), each))
        events.append((each.need, 1 if back < each.need else 3, _turn(each), each))
    late_s = link_s = 0.0
    ends_s: dict[int, float] = {}
    for op, phase, _, each in sorted(events, key=lambda event: event[:3]):
        now_s = float(begins_s[op]) + left.stall_s + late_s
        if phase == 2:
            link_s = ends_s[each.storage] = max(link_s, now_s) + link.in_s(each.size_bytes)
        else:
            until_s = left.ends_s[each.storage] if phase == 0 else ends_s[each.storage]
            late_s += max(0.0, until_s - now_s)
    return late_s


def beginnings(op_s: Sequence[float], extra_s: Mapping[int, float]) -> Seconds:
    """Return when each operation begins, and when the last has ended.

    What is recomputed for an operation takes its extra time: whoever waits, waits before both.
    """
    times = np.array(op_s, np.float64)
    for op, seconds in extra_s.items():
        times[op] += seconds
    result: Seconds = np.concatenate(([0.0], np.cumsum(times)))
    return result
