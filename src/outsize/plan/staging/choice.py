"""How a model is cut into stages for a job: where, in how many micro-batches, as a chain or folded, in what order.

Each way is cut by the time and memory of layers; the best are played out under each schedule, and the fastest is taken.
A norm over samples makes micro-batches approximate: then one of the whole batch goes through the stages, which is exact
and leaves all but one of them waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from outsize.errors import PlanError, explain
from outsize.plan.partition import Chain, Partition, Terms, cut_chain, fold_chain
from outsize.plan.plan import Pipeline, PlannedStage, Rejected
from outsize.plan.simulate import Played, best_orders, stages_of
from outsize.units import format_bytes, format_count, format_seconds

__all__ = ["Staged", "StagesAsked", "stage_ways", "tighter_stages"]

_MOST_LAYERS = 96  # that are told apart
_MOST_PLAYED = 4  # cuts that are played out, of those whose bounds are best
_AS_GOOD = 1.005  # of the fastest: times are known no better
_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "zero-bubble": "zero-bubble"}


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
        return max(self.played.peaks())

    @property
    def fits(self) -> bool:
        """Whether that is no more than there is."""
        return self.peak_bytes <= self.partition.terms.room_bytes

    @property
    def name(self) -> str:
        """Say which it is."""
        folded = ", encoder and decoder of a level on one rank" if self.partition.folded else ""
        num = self.pipeline.num_micro
        micro = "1 micro-batch" if num == 1 else f"{num:,} micro-batches"
        schedule = f" by {_NAMES[self.pipeline.schedule]}" if num > 1 else ""
        return f"{format_count(self.pipeline.num_ranks, 'stage')}{folded}, {micro}{schedule}"

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
        peak = format_bytes(self.peak_bytes)
        if self.inexact is not None and taken.inexact is None:
            return Rejected(self.name, f"approximate: {self.inexact}")
        if not self.fits:
            return Rejected(self.name, f"needs {peak} of {format_bytes(self.partition.terms.room_bytes)}")
        if self.played.step_s <= taken.played.step_s:
            return Rejected(self.name, f"no faster, and needs {peak}")
        return Rejected(self.name, f"slower: {format_seconds(self.played.step_s)} predicted")


def stage_ways(
    asked: StagesAsked, chain_of: Callable[[int], Chain], known: Collection[tuple[str, int]]
) -> list[Staged]:
    """Return the ways that fit, the one to take first.

    `chain_of` tells the layers of a micro-batch of some samples; a cut may come before those that are `known`.
    """
    cuts: list[tuple[Chain, Partition]] = []
    refused: list[PlanError] = []
    for num_micro in _numbers(asked.num_samples):
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
                cuts.append((chain, cut(chain, terms)))
            except PlanError as error:
                refused += [error] if cut is cut_chain else []  # a fold needs more layers, and says less
    found = [staged for each in _promising(cuts) for staged in _scheduled(asked, known, *each)]
    allowed = [each for each in found if each.fits and (asked.approximate or each.inexact is None)]
    if not allowed and any(each.fits for each in found):
        raise _only_approximate(asked, [each for each in found if each.fits])
    if not allowed:
        raise refused[-1] if refused else _no_layers(asked)
    best = _best(allowed)
    return [best, *(each for each in sorted(found, key=lambda each: each.played.step_s) if each is not best)]


def _promising(cuts: list[tuple[Chain, Partition]]) -> list[tuple[Chain, Partition]]:
    """Return the cuts whose bounds are best, for one micro-batch and for several: only one may be exact."""
    found: list[tuple[Chain, Partition]] = []
    for is_whole in (True, False):
        group = [each for each in cuts if (each[1].terms.num_micro == 1) is is_whole]
        found += sorted(group, key=lambda each: each[1].bound_s)[:_MOST_PLAYED]
    return found


def _scheduled(
    asked: StagesAsked, known: Collection[tuple[str, int]], chain: Chain, partition: Partition
) -> list[Staged]:
    """Return a cut under each schedule, the best of them first; one micro-batch leaves nothing to choose."""
    num_micro = partition.terms.num_micro
    pipeline = planned(chain, partition, known)
    if pipeline is None:
        return []
    ordered = best_orders(stages_of(chain, partition), num_micro, asked.room_bytes)
    if num_micro == 1:
        ordered = [each for each in ordered if each.schedule == "1f1b"]
    inexact = asked.across_samples if num_micro > 1 else None
    return [Staged(each.carried_out(pipeline), partition, each.played, inexact) for each in ordered]


def _best(allowed: list[Staged]) -> Staged:
    """Return the fastest of what is exact, if there is any; of those that are as good the one that keeps the least."""
    exact = [each for each in allowed if each.inexact is None] or allowed
    fastest_s = min(each.played.step_s for each in exact)
    as_good = [each for each in exact if each.played.step_s <= fastest_s * _AS_GOOD]
    return min(as_good, key=lambda each: (each.peak_bytes, each.played.step_s))


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
        stages.append(
            PlannedStage(
                stage.rank,
                begins,
                work.forward_s,
                work.backward_s,
                stage.recomputes,
                work.kept_bytes,
                work.fixed_bytes,
                work.weights_s,
                work.split_s,
            )
        )
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
        stages = tuple(replace(each, recomputes=True) for each in pipeline.stages)
        return replace(pipeline, stages=stages, schedule="1f1b", ahead=0)
    larger = [number for number in _numbers(num_samples) if number > pipeline.num_micro]
    return replace(pipeline, num_micro=larger[0]) if more_parts and larger else None
