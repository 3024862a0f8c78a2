"""What a stage of consecutive layers takes on one rank: time for a micro-batch, memory, and what it exchanges.

A stage keeps what backward needs of each micro-batch that is on its way; where that does not fit, it keeps their inputs
alone and runs forward again:

    kept        state + saved x micro-batches on their way
    recomputed  state + input x micro-batches on their way + saved of the one that is run again
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from outsize.errors import PlanError, explain
from outsize.plan.partition.chain import Chain
from outsize.units import format_bytes, format_count

__all__ = ["Partition", "Stage", "Terms", "on_the_way", "refuse_terms", "stage_of"]

InFlight = Literal["all", "few"]


@dataclass(frozen=True)
class Terms:
    """What a cut is made for: how many ranks and micro-batches, their memory, and the link between neighbours."""

    num_ranks: int
    num_micro: int
    room_bytes: float = math.inf  # of each rank
    link_bytes_per_s: float = math.inf
    link_latency_s: float = 0.0
    copies_overlap: bool = True  # messages travel beside kernels; over gloo on a CPU they do not
    in_flight: InFlight = "few"  # 1F1B has a few micro-batches on their way, GPipe all
    may_recompute: bool = True

    def message_s(self, num_bytes: float) -> float:
        """Return how long one message takes; what is nothing is not sent."""
        return self.link_latency_s + num_bytes / self.link_bytes_per_s if num_bytes else 0.0


@dataclass(frozen=True)
class Stage:
    """Layers from `first` to before `end` on a rank: the time of one micro-batch, and the bytes of them all."""

    rank: int
    first: int
    end: int
    forward_s: float
    backward_s: float  # with what is recomputed
    peak_bytes: int
    recomputes: bool
    messages_s: float  # forward or back, what comes in and what goes out

    @property
    def work_s(self) -> float:
        """Time of one micro-batch on both ways."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Partition:
    """Stages in the order of the model; folded, a rank has one stage of the encoder and one of the decoder."""

    stages: tuple[Stage, ...]
    terms: Terms
    bound_s: (
        float  # no schedule of forward and backward in this partition takes less but by splitting backward
    )
    whole_s: float  # of one micro-batch through all layers on one rank that keeps all
    folded: bool = False
    why: tuple[str, ...] = ()

    @cached_property
    def owner(self) -> tuple[int, ...]:
        """The stage of each layer."""
        return tuple(
            number for number, stage in enumerate(self.stages) for _ in range(stage.first, stage.end)
        )

    @property
    def speedup_bound(self) -> float:
        """How many times as fast as one rank that holds everything these stages can be."""
        return self.terms.num_micro * self.whole_s / self.bound_s

    def peaks(self) -> list[int]:
        """Return the memory of each rank."""
        found = [0] * self.terms.num_ranks
        for stage in self.stages:
            found[stage.rank] += stage.peak_bytes
        return found


def on_the_way(terms: Terms, rank: int) -> int:
    """Return how many micro-batches a rank has on their way at most."""
    return terms.num_micro if terms.in_flight == "all" else min(terms.num_micro, terms.num_ranks - rank)


def stage_of(chain: Chain, first: int, end: int, rank: int, terms: Terms) -> Stage | None:
    """Return the faster of keeping and recomputing that fits; None where neither does."""
    num = on_the_way(terms, rank)
    forward_s, backward_s = chain.forward_s(first, end), chain.backward_s(first, end)
    state, saved = chain.state_bytes(first, end), chain.saved_bytes(first, end)
    inward = chain.crossing[first - 1] if first else 0
    outward = chain.crossing[end - 1]
    messages_s = terms.message_s(inward) + terms.message_s(outward)
    kept = state + saved * num
    if kept <= terms.room_bytes:
        return Stage(rank, first, end, forward_s, backward_s, kept, False, messages_s)
    again = state + saved + inward * num
    if terms.may_recompute and again <= terms.room_bytes:
        return Stage(rank, first, end, forward_s, backward_s + forward_s, again, True, messages_s)
    return None


def slot_s(stage: Stage, terms: Terms) -> float:
    """Return how long a stage is busy with one micro-batch: kernels, with messages beside or between them."""
    if terms.copies_overlap:
        return max(stage.work_s, stage.messages_s)
    return stage.work_s + 2 * stage.messages_s


def refuse_terms(chain: Chain, terms: Terms, *, num_stages: int) -> None:
    """Refuse what no cut can meet: too many stages, no micro-batches, a layer whose weights alone do not fit."""
    if terms.num_ranks < 1 or terms.num_micro < 1:
        found = f"{terms.num_ranks} and {terms.num_micro}"
        raise PlanError(
            explain("stages and micro-batches are counted from 1", found, "1 or more", "correct them")
        )
    if num_stages > len(chain):
        found, need = format_count(num_stages, "stage"), f"at most {len(chain)}, one for each layer"
        raise PlanError(explain("there are more stages than layers", found, need, "take fewer stages"))
    for number, layer in enumerate(chain.layers):
        need_bytes = chain.state_bytes(number, number + 1)
        if need_bytes > terms.room_bytes:
            raise PlanError(
                explain(
                    f"weights, gradients and optimizer state of the layer {layer.name!r} alone do not fit on a rank",
                    format_bytes(need_bytes),
                    f"at most {format_bytes(terms.room_bytes)}",
                    "take GPUs with more memory, or keep weights on the host",
                )
            )


def reasons(stages: Sequence[Stage], chain: Chain, terms: Terms) -> tuple[str, ...]:
    """Say why this cut is as fast as it is."""
    work = [0.0] * terms.num_ranks
    for stage in stages:
        work[stage.rank] += stage.work_s
    slowest = max(range(terms.num_ranks), key=work.__getitem__)
    idle = (terms.num_ranks - 1) / (terms.num_micro + terms.num_ranks - 1)
    found = [
        f"rank {slowest} has {max(work) / sum(work):.0%} of the work, an even share is {1 / len(work):.0%}"
    ]
    if terms.num_ranks > 1:
        short = " (fewer micro-batches than stages)" if terms.num_micro < terms.num_ranks else ""
        found.append(f"ranks wait {idle:.0%} of the time for the pipeline to fill and drain{short}")
    again = sorted({stage.rank for stage in stages if stage.recomputes})
    if again:
        ranks = ", ".join(map(str, again))
        found.append(f"rank {ranks} runs forward again: what backward needs does not fit")
    late = [stage for stage in stages if terms.copies_overlap and stage.messages_s > stage.work_s]
    if late:
        found.append(f"rank {late[0].rank} waits for the link more than it computes")
    crossing = sum(chain.crossing[stage.end - 1] for stage in stages[:-1])
    found.append(
        f"each micro-batch sends {format_bytes(crossing)} over {format_count(len(stages) - 1, 'cut')}"
    )
    return tuple(found)
