"""The optimizer's state in shards: each rank keeps that of some weights.

weights   | a . . . . | b . | c . . . | d | e . . |      in the model's order
rank      |     0           |        1            |      stretches of about the same bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outsize.plan.plan import Plan, Replicate
from outsize.plan.step import StepFacts, allocated_bytes
from outsize.units import format_bytes


def keepers(sizes: Sequence[int], num_ranks: int) -> list[int]:
    """Return which rank keeps the state of each weight: the one that the weight's middle falls to."""
    total = max(1, sum(sizes))
    ranks, begin = [], 0
    for size in sizes:
        ranks.append(min(num_ranks - 1, (2 * begin + size) * num_ranks // (2 * total)))
        begin += size
    return ranks


def largest_share(sizes: Sequence[int], num_ranks: int) -> float:
    """Return the share of all state that the rank with the most of it keeps."""
    held = [0] * num_ranks
    for size, rank in zip(sizes, keepers(sizes, num_ranks), strict=True):
        held[rank] += size
    return max(held) / max(1, sum(sizes))


def with_state_in_shards(facts: StepFacts, share: float) -> StepFacts:
    """Return a step of a rank that keeps a share of the optimizer's state."""
    storages = [
        replace(each, size_bytes=allocated_bytes(round(each.size_bytes * share)))
        if each.role == "optimizer" and each.born < 0
        else each
        for each in facts.storages
    ]
    return replace(facts, storages=tuple(storages))


def sharded(plan: Plan, num_ranks: int, weight_bytes: int, bytes_per_s: float) -> Plan:
    """Return the plan of a step after which each rank sends the weights whose state it keeps."""
    sent_s = weight_bytes / bytes_per_s
    why = (
        f"the optimizer's state is in {num_ranks} shards, one on each rank, which sends the weights that it updates:"
        f" {format_bytes(weight_bytes)} after each step"
    )
    return replace(
        plan, replicate=Replicate(num_ranks), step_s=(plan.step_s or 0.0) + sent_s, why=(why, *plan.why)
    )
