"""How a model is cut into so many stages for a job: where, in how many micro-batches, as a chain or folded.

Each way is cut by the time and memory of layers, then played out; the fastest is taken. A norm over samples makes
micro-batches approximate: then one of the whole batch goes through the stages, which is exact and leaves all but one of
them waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from outsize.errors import PlanError, explain
from outsize.plan.partition import Chain, Partition, Terms, cut_chain, fold_chain
from outsize.plan.plan import Pipeline, PlannedStage, Rejected
from outsize.plan.simulate import Played, play_planned, stages_of
from outsize.units import format_count, format_seconds

__all__ = ["Staged", "StagesAsked", "stage_ways", "tighter_stages"]

_MOST_LAYERS = 96  # that are told apart


@dataclass(frozen=True)
class StagesAsked:
    """What stages are to be found for: the samples of one pipeline, its ranks, and what is between them."""

    num_stages: int
    num_samples: int
    room_bytes: float
    link_bytes_per_s: float
    link_latency_s: float
    copies_overlap: bool
    across_samples: str | None  # what makes samples depend on each other
    approximate: bool  # that may be left out of account


@dataclass(frozen=True)
class Staged:
    """A cut, and the step that it makes."""

    pipeline: Pipeline
    partition: Partition
    played: Played
    inexact: str | None

    @property
    def peak_bytes(self) -> int:
        """What the fullest rank holds."""
        return max(self.partition.peaks())

    @property
    def name(self) -> str:
        """Say which it is."""
        folded = ", encoder and decoder of a level on one rank" if self.partition.folded else ""
        num = self.pipeline.num_micro
        micro = "1 micro-batch" if num == 1 else f"{num:,} micro-batches"
        return f"{format_count(self.pipeline.num_ranks, 'stage')}{folded}, {micro}"

    def why(self) -> tuple[str, ...]:
        """Say why it is as fast as it is."""
        waits = self.played.idle_share
        found = [f"{self.name}: {format_seconds(self.played.step_s)} predicted, ranks wait {waits:.0%} of it"]
        if self.inexact is not None:
            found.append(f"approximate: {self.inexact} sees the samples of a micro-batch alone")
        short = self.pipeline.num_micro < self.pipeline.num_ranks
        found += ["there are fewer micro-batches than stages"] if short else []
        return (*found, *(each for each in self.partition.why if "ranks wait" not in each))

    def as_rejected(self, taken: Staged) -> Rejected:
        """Say why another one was taken."""
        if self.inexact is not None and taken.inexact is None:
            return Rejected(self.name, f"approximate: {self.inexact}")
        return Rejected(self.name, f"slower: {format_seconds(self.played.step_s)} predicted")


def stage_ways(
    asked: StagesAsked, chain_of: Callable[[int], Chain], known: Collection[tuple[str, int]]
) -> list[Staged]:
    """Return the ways that fit, the one to take first.

    `chain_of` tells the layers of a micro-batch of some samples; a cut may come before those that are `known`.
    """
    found: list[Staged] = []
    refused: list[PlanError] = []
    for num_micro in _numbers(asked.num_samples):
        inexact = asked.across_samples if num_micro > 1 else None
        chain = chain_of(math.ceil(asked.num_samples / num_micro)).merged(_MOST_LAYERS)
        terms = Terms(
            asked.num_stages,
            num_micro,
            asked.room_bytes,
            asked.link_bytes_per_s,
            asked.link_latency_s,
            asked.copies_overlap,
        )
        for cut in (cut_chain, fold_chain):
            try:
                partition = cut(chain, terms)
            except PlanError as error:
                refused += [error] if cut is cut_chain else []  # a fold needs more layers, and says less
                continue
            pipeline = planned(chain, partition, known)
            if pipeline is None:
                continue
            found.append(Staged(pipeline, partition, play_planned(pipeline, num_micro), inexact))
    allowed = [each for each in found if asked.approximate or each.inexact is None]
    if not allowed and found:
        raise _only_approximate(asked, found)
    if not allowed:
        raise refused[-1] if refused else _no_layers(asked)
    best = min(allowed, key=lambda each: (each.inexact is not None, each.played.step_s))
    return [best, *(each for each in sorted(found, key=lambda each: each.played.step_s) if each is not best)]


def _only_approximate(asked: StagesAsked, found: list[Staged]) -> PlanError:
    least = min(found, key=lambda each: each.played.step_s)
    return PlanError(
        explain(
            "no cut into stages that fits is exact",
            f"{least.name}, where {asked.across_samples} sees the samples of a micro-batch alone",
            "the whole batch at once in each stage",
            "set limits.allow_approximate = true, or take more stages or a smaller train.batch",
        )
    )


def _no_layers(asked: StagesAsked) -> PlanError:
    need = "stages that begin with a layer of the traced model"
    return PlanError(explain("no cut into stages was found", asked.num_stages, need, "take fewer stages"))


def _numbers(num_samples: int) -> list[int]:
    """Return numbers of micro-batches that differ: each has another number of samples."""
    sizes = {math.ceil(num_samples / num) for num in range(1, num_samples + 1)}
    return sorted(math.ceil(num_samples / size) for size in sizes)


def planned(chain: Chain, partition: Partition, known: Collection[tuple[str, int]]) -> Pipeline | None:
    """Return the setting of a plan for a partition, whose stages begin with known layers; None where one has none."""
    works = stages_of(chain, partition)
    stages = []
    for stage, work in zip(partition.stages, works.works, strict=True):
        keys = ((each.name, each.call) for each in chain.layers[stage.first : stage.end])
        begins = next((key for key in keys if key in known), None) if stage.first else ("", 0)
        if begins is None:
            return None
        stages.append(PlannedStage(stage.rank, begins, work.forward_s, work.backward_s, stage.recomputes))
    optimizer_bytes = [0] * partition.terms.num_ranks
    for stage in partition.stages:
        weights_bytes = chain.weights_bytes(stage.first, stage.end)
        optimizer_bytes[stage.rank] += chain.state_bytes(stage.first, stage.end) - 2 * weights_bytes
    messages = tuple((*way, seconds) for way, seconds in works.messages.items())
    return Pipeline(
        tuple(stages),
        partition.terms.num_micro,
        "1f1b",
        messages,
        works.copies_overlap,
        tuple(optimizer_bytes),
    )


def tighter_stages(pipeline: Pipeline, num_samples: int, *, more_parts: bool) -> Pipeline | None:
    """Return what keeps less: stages run forward again, then smaller micro-batches; None: nothing is left."""
    if not all(stage.recomputes for stage in pipeline.stages):
        return replace(pipeline, stages=tuple(replace(each, recomputes=True) for each in pipeline.stages))
    larger = [number for number in _numbers(num_samples) if number > pipeline.num_micro]
    return replace(pipeline, num_micro=larger[0]) if more_parts and larger else None
