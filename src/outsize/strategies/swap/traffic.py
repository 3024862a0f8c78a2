"""Counts what moves between a device and host memory, how fast, and how long compute waited for it."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from outsize.strategies.swap.pinned import PinnedPool
from outsize.strategies.swap.streams import Copy, Mark, Way

_Name = TypeVar("_Name", bound=str)
_STALL_S = 5e-5  # shorter ones are the host's time between two marks


@dataclass(frozen=True)
class Counters:
    """What was moved since the last time somebody asked. None: was not timed."""

    num_forwards: int
    num_timed: int  # of them: rates, stalls and the time of copies are those of these
    num_out: int
    out_bytes: int
    num_in: int
    in_bytes: int
    num_on_demand: int  # of those that came back: not before they were asked for
    num_resident: int  # taken, and left where they are: of no bytes, or not plain memory of the device
    num_full: int  # left on the device, because the pool had no room for them
    full_bytes: int
    num_unmet: int  # that the plan names and a forward did not save
    num_changed: int  # of another size than planned
    num_stalls: int | None  # times that compute waited for a copy
    stall_s: float | None
    copy_s: float | None  # that copies ran, both ways added up
    out_bytes_per_s: float | None  # while a copy runs
    in_bytes_per_s: float | None
    planned_pinned_bytes: int  # the size of the pool
    pinned_bytes: int  # in use now
    most_pinned_bytes: int  # in use at once, from the beginning

    @property
    def late_share(self) -> float:
        """The share of copies back that began too late to be hidden."""
        return self.num_on_demand / self.num_in if self.num_in else 0.0

    @property
    def hidden_share(self) -> float | None:
        """The share of the time of copies in which compute did not wait for one."""
        if not self.copy_s or self.stall_s is None:
            return None
        return max(0.0, 1 - self.stall_s / self.copy_s)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "late_share": self.late_share, "hidden_share": self.hidden_share}


class Counted(Protocol):
    """Who moves tensors and counts them."""

    def counters(self) -> Counters | None:
        """Return what was counted since the last call; None where nothing ran yet."""


class Meter:
    """Reads the counters of the step that runs now, and does not keep it: each plan of a training has its own."""

    def __init__(self) -> None:
        self._watched: weakref.ref[Counted] | None = None

    def watch(self, counted: Counted) -> None:
        """Read this one from now on."""
        self._watched = weakref.ref(counted)

    def read(self) -> Counters | None:
        """Return what was counted since the last time; None where nothing is moved."""
        counted = None if self._watched is None else self._watched()
        return None if counted is None else counted.counters()


@dataclass(frozen=True)
class Sums:
    """What was counted: by name, and copies of each way with their bytes."""

    counts: dict[str, int]
    num: dict[Way, int]
    num_bytes: dict[Way, int]


# of a tally: what a replay of a recorded forward does once more
_COUNTED = (
    "num_forwards",
    "num_on_demand",
    "num_resident",
    "num_full",
    "full_bytes",
    "num_unmet",
    "num_changed",
)


class SwapTally:
    """Counts what is moved, and sums up times once they are known."""

    def __init__(self) -> None:
        self.num_forwards = self.num_timed = 0
        self.num_on_demand = self.num_resident = self.num_full = self.full_bytes = 0
        self.num_unmet = self.num_changed = 0
        self.waits: deque[tuple[Mark, Mark]] = deque()
        self._copies: deque[tuple[Way, int, Mark, Mark]] = deque()
        self._num: dict[Way, int] = {"out": 0, "in": 0}
        self._bytes: dict[Way, int] = {"out": 0, "in": 0}
        self._timed_bytes: dict[Way, int] = {"out": 0, "in": 0}
        self._timed_s: dict[Way, float] = {"out": 0.0, "in": 0.0}
        self._num_stalls, self._stall_s = 0, 0.0
        self._timed = False

    def count(self, way: Way, num_bytes: int, copy: Copy) -> None:
        """Count a copy."""
        self._num[way] += 1
        self._bytes[way] += num_bytes
        if copy.begin is not None:
            self._copies.append((way, num_bytes, copy.begin, copy.end))

    def so_far(self) -> Sums:
        """Return what was counted."""
        counts = {name: getattr(self, name) for name in _COUNTED}
        return Sums(counts, dict(self._num), dict(self._bytes))

    def back_to(self, before: Sums) -> Sums:
        """Count as before, and return what had come on top: what is recorded does not happen."""
        now = self.so_far()
        for name, count in before.counts.items():
            setattr(self, name, count)
        self._num, self._bytes = dict(before.num), dict(before.num_bytes)
        return Sums(
            _less(now.counts, before.counts),
            _less(now.num, before.num),
            _less(now.num_bytes, before.num_bytes),
        )

    def again(self, more: Sums) -> None:
        """Count what was recorded, and happens now."""
        for name, count in more.counts.items():
            setattr(self, name, getattr(self, name) + count)
        for way in self._num:
            self._num[way] += more.num[way]
            self._bytes[way] += more.num_bytes[way]

    def sum_up(self, *, wait: bool = False) -> None:
        """Add up the times of what is over, or wait until all of it is."""
        while self._copies and (wait or self._copies[0][3].query()):
            way, num_bytes, begin, end = self._copies.popleft()
            end.synchronize()
            self._timed_bytes[way] += num_bytes
            self._timed_s[way] += begin.elapsed_time(end) / 1e3
        while self.waits and (wait or self.waits[0][1].query()):
            begin, end = self.waits.popleft()
            end.synchronize()
            stall_s = begin.elapsed_time(end) / 1e3
            self._timed = True
            self._num_stalls += stall_s > _STALL_S
            self._stall_s += stall_s if stall_s > _STALL_S else 0.0

    def counters(self, pool: PinnedPool) -> Counters:
        """Return all that was counted and timed."""
        rate = {way: self._timed_bytes[way] / s if s > 0 else None for way, s in self._timed_s.items()}
        copy_s = sum(self._timed_s.values())
        return Counters(
            num_forwards=self.num_forwards,
            num_timed=self.num_timed,
            num_out=self._num["out"],
            out_bytes=self._bytes["out"],
            num_in=self._num["in"],
            in_bytes=self._bytes["in"],
            num_on_demand=self.num_on_demand,
            num_resident=self.num_resident,
            num_full=self.num_full,
            full_bytes=self.full_bytes,
            num_unmet=self.num_unmet,
            num_changed=self.num_changed,
            num_stalls=self._num_stalls if self._timed else None,
            stall_s=self._stall_s if self._timed else None,
            copy_s=copy_s or None,
            out_bytes_per_s=rate["out"],
            in_bytes_per_s=rate["in"],
            planned_pinned_bytes=pool.size_bytes,
            pinned_bytes=pool.in_use_bytes,
            most_pinned_bytes=pool.most_bytes,
        )


def _less(counted: dict[_Name, int], before: dict[_Name, int]) -> dict[_Name, int]:
    return {name: count - before[name] for name, count in counted.items()}
