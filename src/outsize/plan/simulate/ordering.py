"""In which order the ranks of a pipeline best work: each schedule with more and fewer micro-batches on their way.

    1F1B, none ahead   |F0|  |F1|B0|F2|B1|      what comes back early waits for what is on its way to it
    1F1B, two ahead    |F0|F1|F2|  |B0|F3|B1|   more is kept, and a fold has something to do at its turn

All of them are played out. Of those that fit, the one is taken that keeps the least and is as good as the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from outsize.plan.plan import Pipeline
from outsize.plan.simulate.pipeline import Order, Played, ScheduleName, Stages, play

__all__ = ["SCHEDULES", "Ordered", "best_orders"]

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "zero-bubble")  # of those as good the first
_AHEAD = (0, 1, 2, 3, 5, 8)
_AS_GOOD = 1.005  # of the fastest: times are known no better
_MOST_TASKS = 700  # of a step that is played out in every order, which takes some hundred milliseconds


@dataclass(frozen=True)
class Ordered:
    """A schedule, and the step that it makes."""

    schedule: ScheduleName
    order: Order
    played: Played

    @property
    def peak_bytes(self) -> int:
        """What the fullest rank holds."""
        return max(self.played.peaks())

    def carried_out(self, pipeline: Pipeline) -> Pipeline:
        """Return a pipeline that works in this order."""
        return replace(
            pipeline,
            schedule=self.schedule,
            ahead=self.order.ahead,
            longest_first=self.order.longest_first,
        )


def best_orders(stages: Stages, num_micro: int, room_bytes: float = math.inf) -> list[Ordered]:
    """Return the best order of each schedule, the best of all first; those that do not fit come last."""
    found = [_best(list(_tried(stages, num_micro, name)), room_bytes) for name in SCHEDULES]
    first = _best(found, room_bytes)
    return [first, *(each for each in found if each is not first)]


def _best(tried: list[Ordered], room_bytes: float) -> Ordered:
    fitting = [each for each in tried if each.peak_bytes <= room_bytes]
    if not fitting:
        return min(tried, key=lambda each: each.peak_bytes)
    fastest_s = min(each.played.step_s for each in fitting)
    as_good = [each for each in fitting if each.played.step_s <= fastest_s * _AS_GOOD]
    return min(as_good, key=lambda each: (each.peak_bytes, each.played.step_s))


def _tried(stages: Stages, num_micro: int, name: ScheduleName) -> Iterator[Ordered]:
    tasks = 2 * num_micro * len(stages.works)
    aheads = [None, *(each for each in _AHEAD if each < num_micro)] if name != "gpipe" else [None]
    if tasks > _MOST_TASKS:
        aheads = aheads[:1]
    for longest_first in (False, True):
        for ahead in aheads:
            order = Order(ahead, longest_first)
            yield Ordered(name, order, play(stages, num_micro, name, order))
