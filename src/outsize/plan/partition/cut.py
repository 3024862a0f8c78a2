"""The best cut of a chain into consecutive stages, by dynamic programming over how far the first stages reach.

    time of a step = (micro-batches - 1) x slowest stage + all stages and messages of one micro-batch

Two things count, so for each number of stages and each end the cuts are kept of which no other is better in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from outsize.errors import PlanError, explain
from outsize.plan.partition.chain import Chain
from outsize.plan.partition.stages import (
    Partition,
    Stage,
    Terms,
    on_the_way,
    reasons,
    refuse_terms,
    slot_s,
    stage_of,
)
from outsize.units import format_bytes, format_count

__all__ = ["cut_chain"]

Front = list[
    tuple[float, float, tuple[int, ...]]
]  # slowest stage, the path of one micro-batch, ends of stages


def cut_chain(chain: Chain, terms: Terms, ends: tuple[int, ...] | None = None) -> Partition:
    """Return the cut with the least time of a step that fits, or that before given layers; refuse where none does."""
    refuse_terms(chain, terms, num_stages=terms.num_ranks)
    if ends is not None:
        return _cut_at(chain, terms, ends)
    price = _price(chain, terms)
    most_s = _evenest(chain, terms, price)
    if most_s is None:
        raise PlanError(_why_not(chain, terms))
    num, length = terms.num_ranks, len(chain)
    left_s = [chain.forward_s(end, length) + chain.backward_s(end, length) for end in range(length + 1)]
    fronts: list[Front] = [[] for _ in range(length + 1)]
    fronts[0] = [(0.0, 0.0, ())]
    for rank in range(num):
        later = num - 1 - rank
        reached: list[Front] = [[] for _ in range(length + 1)]
        for end in range(rank + 1, length - later + 1) if later else [length]:
            found: Front = []
            for first in range(end - 1, rank - 1, -1):
                work_s = chain.forward_s(first, end) + chain.backward_s(first, end)
                if (terms.num_micro - 1) * work_s > most_s:
                    break  # a stage from further ahead is slower still
                paid = price(rank, first, end) if fronts[first] else None
                if paid is None:
                    continue
                for slowest_s, path_s, before in fronts[first]:
                    slow, path = max(slowest_s, paid[0]), path_s + paid[1]
                    least = max(slow, left_s[end] / later) if later else slow
                    if (terms.num_micro - 1) * least + path + left_s[end] <= most_s * (1 + 1e-9):
                        found.append((slow, path, (*before, end)))
            reached[end] = _undominated(found)
        fronts = reached
    best = min(fronts[length], key=lambda each: (terms.num_micro - 1) * each[0] + each[1])
    return _cut_at(chain, terms, best[2])


def _cut_at(chain: Chain, terms: Terms, ends: tuple[int, ...]) -> Partition:
    stages: list[Stage] = []
    for rank, (first, end) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
        stage = stage_of(chain, first, end, rank, terms)
        if stage is None:
            raise PlanError(_why_not(chain, terms))
        stages.append(stage)
    path_s = sum(stage.work_s + _sent_s(chain, stage, terms) for stage in stages)
    bound_s = (terms.num_micro - 1) * max(slot_s(stage, terms) for stage in stages) + path_s
    whole_s = chain.forward_s(0, len(chain)) + chain.backward_s(0, len(chain))
    return Partition(tuple(stages), terms, bound_s, whole_s, why=reasons(stages, chain, terms))


def _sent_s(chain: Chain, stage: Stage, terms: Terms) -> float:
    """Return the messages of one micro-batch behind a stage, there and back."""
    return 2 * terms.message_s(chain.crossing[stage.end - 1])


def _price(chain: Chain, terms: Terms) -> Callable[[int, int, int], tuple[float, float] | None]:
    """Return what a stage adds: to the slowest, and to the path of one micro-batch; None where it does not fit."""

    @cache
    def priced(num_on_way: int, first: int, end: int) -> tuple[float, float] | None:
        rank = next(each for each in range(terms.num_ranks) if on_the_way(terms, each) == num_on_way)
        stage = stage_of(chain, first, end, rank, terms)
        if stage is None:
            return None
        return slot_s(stage, terms), stage.work_s + _sent_s(chain, stage, terms)

    return lambda rank, first, end: priced(on_the_way(terms, rank), first, end)


def _evenest(
    chain: Chain, terms: Terms, price: Callable[[int, int, int], tuple[float, float] | None]
) -> float | None:
    """Return the time of a step with the least slowest stage: no better cut takes longer. None: nothing fits."""
    length = len(chain)
    best: list[tuple[float, float]] = [(math.inf, 0.0)] * (length + 1)
    best[0] = (0.0, 0.0)
    for rank in range(terms.num_ranks):
        reached = [(math.inf, 0.0)] * (length + 1)
        for end in range(rank + 1, length + 1):
            for first in range(end - 1, rank - 1, -1):
                if best[first][0] == math.inf:
                    continue
                paid = price(rank, first, end)
                if paid is not None:
                    slow = max(best[first][0], paid[0])
                    reached[end] = min(reached[end], (slow, best[first][1] + paid[1]))
                work_s = chain.forward_s(first, end) + chain.backward_s(first, end)
                if work_s > reached[end][0]:
                    break
        best = reached
    slowest_s, path_s = best[length]
    return None if slowest_s == math.inf else (terms.num_micro - 1) * slowest_s + path_s


def _undominated(found: Front) -> Front:
    kept: Front = []
    for each in sorted(found):
        if not kept or each[1] < kept[-1][1]:
            kept.append(each)
    return kept


def _why_not(chain: Chain, terms: Terms) -> str:
    """Say what the cut with the least memory would need."""
    length = len(chain)
    best = [0.0, *([math.inf] * length)]
    for rank in range(terms.num_ranks):
        num = on_the_way(terms, rank)
        reached = [math.inf] * (length + 1)
        for end in range(rank + 1, length + 1):
            for first in range(rank, end):
                state, saved = chain.state_bytes(first, end), chain.saved_bytes(first, end)
                inward = chain.crossing[first - 1] if first else 0
                need = state + saved * num
                if terms.may_recompute:
                    need = min(need, state + saved + inward * num)
                reached[end] = min(reached[end], max(best[first], need))
        best = reached
    return explain(
        f"no cut into {format_count(terms.num_ranks, 'stage')} fits",
        f"{format_bytes(best[length])} on the fullest rank at least",
        f"at most {format_bytes(terms.room_bytes)}",
        "take more stages, smaller micro-batches, or GPUs with more memory",
    )
