"""Counts what moves between a device and host memory, how fast, and how long compute waited for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from outsize.strategies.pinned import PinnedPool
from outsize.strategies.streams import Copy, Mark, Way

_STALL_S = 5e-5  # shorter ones are the host's time between two marks


@dataclass(frozen=True)
class Counters:
    """What was moved since the last time somebody asked. None: was not timed."""

    num_out: int
    out_bytes: int
    num_in: int
    in_bytes: int
    num_on_demand: int  # of those that came back: not before they were asked for
    num_resident: int  # taken, and left where they are: of no bytes, or not plain memory of the device
    num_stalls: int | None  # times that compute waited for a copy
    stall_s: float | None
    out_bytes_per_s: float | None  # while a copy runs
    in_bytes_per_s: float | None
    pinned_bytes: int  # in use now
    most_pinned_bytes: int  # in use at once, from the beginning

    @property
    def late_share(self) -> float:
        """The share of copies back that began too late to be hidden."""
        return self.num_on_demand / self.num_in if self.num_in else 0.0


class Tally:
    """Counts what is moved, and sums up times once they are known."""

    def __init__(self) -> None:
        self.num_on_demand = self.num_resident = 0
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
        return Counters(
            num_out=self._num["out"],
            out_bytes=self._bytes["out"],
            num_in=self._num["in"],
            in_bytes=self._bytes["in"],
            num_on_demand=self.num_on_demand,
            num_resident=self.num_resident,
            num_stalls=self._num_stalls if self._timed else None,
            stall_s=self._stall_s if self._timed else None,
            out_bytes_per_s=rate["out"],
            in_bytes_per_s=rate["in"],
            pinned_bytes=pool.in_use_bytes,
            most_pinned_bytes=pool.most_bytes,
        )
