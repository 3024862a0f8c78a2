"""What a verb did from when to when: one activity at a time, the inner one of two.

train      ########        ########        ####
validate           #######         #######
----------|-------|-------|-------|-------|----> seconds since the verb began
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_FINEST = 1000  # spans that are closer than this part of the whole are written down as one

Span = tuple[float, float]


@dataclass(frozen=True)
class Activity:
    """What a verb did under one name, and how many did it side by side."""

    name: str
    parallel: int  # ranks, threads or connections that shared it
    spans: tuple[Span, ...]  # in seconds since the verb began
    seconds: float

    @classmethod
    def of(cls, name: str, parallel: int, spans: Sequence[Span], least_s: float) -> Activity:
        """Join spans that are too close to be told apart: a training of a thousand epochs has as many."""
        joined: list[Span] = []
        for start, end in spans:
            if joined and start - joined[-1][1] < least_s:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((start, end))
        shown = tuple((round(start, 3), round(end, 3)) for start, end in joined)
        return cls(name, parallel, shown, round(sum(end - start for start, end in spans), 3))


class Activities:
    """Which activity is going on; one that begins inside another one interrupts it."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._now: tuple[str, int] | None = None
        self._since_s = 0.0
        self._spans: dict[tuple[str, int], list[Span]] = {}

    @property
    def any(self) -> bool:
        """Whether one has begun."""
        return bool(self._spans) or self._now is not None

    @contextmanager
    def doing(self, name: str, parallel: int) -> Iterator[None]:
        """Count the time of the block as that of an activity; one within another of its name is shared like that."""
        before = self._now
        self._turn_to(before if before is not None and before[0] == name else (name, parallel))
        try:
            yield
        finally:
            self._turn_to(before)

    def found(self) -> tuple[float, tuple[Activity, ...]]:
        """Return the seconds since the beginning, and what was done in them in the order of its first time."""
        self._turn_to(self._now)
        whole_s = self._since_s
        least_s = whole_s / _FINEST
        return whole_s, tuple(Activity.of(*key, spans, least_s) for key, spans in self._spans.items())

    def _turn_to(self, another: tuple[str, int] | None) -> None:
        now_s = time.perf_counter() - self._began_s
        if self._now is not None:
            self._spans.setdefault(self._now, []).append((self._since_s, now_s))
        self._now, self._since_s = another, now_s
