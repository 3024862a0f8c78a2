"""The plan of a job whose model is cut into stages over several ranks: chosen from numbers, and tried on the graph."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from outsize.errors import JobError, PlanError, explain
from outsize.job import Job
from outsize.plan.facts import Facts
from outsize.plan.limits import limit_of, usable_bytes
from outsize.plan.partition import Chain, chain_of
from outsize.plan.plan import Plan, Rejected
from outsize.plan.staging import Staged, StagesAsked, stage_ways
from outsize.planning.situation import Situation, share_of
from outsize.planning.traced import traced_for
from outsize.units import format_count, format_seconds

if TYPE_CHECKING:
    from torch import nn

    from outsize.plan.way import StepRequest

_MOST_REJECTED = 6


def staged_plan(
    job: Job, model: nn.Module, num_bands: int, facts: Facts, asked: StepRequest, where: Situation
) -> Plan:
    """Return the plan of a training in `where.sharing.stages`; GPUs beyond one pipeline make replicas of it."""
    num_stages = where.sharing.stages or 1
    num_replicas = replicas_of(where.num_gpus, num_stages)
    if num_replicas > job.train.batch:
        found, need = f"{num_replicas} pipelines for train.batch = {job.train.batch}", "a sample for each"
        raise JobError(explain("there are more pipelines than samples", found, need, "take more stages"))
    num_samples = share_of(job.train.batch, num_replicas)
    link = where.between
    stages = StagesAsked(
        num_stages=num_stages,
        num_samples=num_samples,
        room_bytes=usable_bytes(facts.machine, job.limits),
        link_bytes_per_s=link.bytes_per_s,
        link_latency_s=link.latency_s,
        copies_overlap=where.kind == "cuda",
        across_samples=asked.across_samples,
        approximate=job.limits.allow_approximate,
    )
    inputs, traced = traced_for(job, model, num_bands, num_samples)
    ways = stage_ways(stages, partial(_chain, asked, where), _layers(traced))
    taken = _first_that_can_be_cut(ways, model, inputs, traced, where)
    replicas = (f"{num_replicas} replicas of it share a batch",) if num_replicas > 1 else ()
    spread = () if asked.spread is None else (f"approximate: {asked.spread}",)
    rejected = [each.as_rejected(taken) for each in ways if each is not taken]
    return Plan(
        purpose="train",
        batch=num_samples,
        limit_bytes=limit_of(facts.machine, job.limits),
        peak_bytes=taken.peak_bytes,
        exact=taken.inexact is None and asked.spread is None,
        why=(*taken.why(), *replicas, *spread),
        rejected=tuple(rejected[:_MOST_REJECTED]),
        micro_batches=taken.pipeline.num_micro,
        pipeline=taken.pipeline,
        step_s=taken.played.step_s,
    )


def replicas_of(num_gpus: int, num_stages: int) -> int:
    """Return how many pipelines of so many stages the GPUs make; refuse what leaves some over."""
    if num_gpus % num_stages:
        found, need = f"--stages {num_stages} with {num_gpus} GPUs", "a number of GPUs that stages divide"
        raise JobError(explain("GPUs are left over", found, need, f"take --gpus {num_stages} or a multiple"))
    return num_gpus // num_stages


def _chain(asked: StepRequest, where: Situation, num_samples: int) -> Chain:
    return chain_of(asked.step_of(num_samples, asked.side_px), where.clock)


def _layers(traced: Any) -> set[tuple[str, int]]:
    from outsize.strategies.pipeline import layers_of

    return set(layers_of(traced))


def _first_that_can_be_cut(
    ways: list[Staged], model: nn.Module, inputs: tuple[Any, ...], traced: Any, where: Situation
) -> Staged:
    """Return the first way whose cut changes nothing of what the model does."""
    from outsize.strategies.pipeline import cut_traced

    refused: PlanError | None = None
    for way in ways:
        if way.inexact is not None and ways[0].inexact is None:
            continue
        cut = [stage.begins for stage in way.pipeline.stages]
        try:
            cut_traced(traced, model, inputs, cut, {}, bf16=where.bf16)
        except PlanError as error:
            refused = error
        else:
            return way
    assert refused is not None
    raise refused


def with_stages(where: Situation, num_stages: int) -> Situation:
    """Return a situation in which the model is cut into so many stages."""
    return replace(where, sharing=replace(where.sharing, stages=num_stages))


def gives_up_much(plan: Plan) -> bool:
    """Whether a plan of the whole model on each GPU pays for its memory with copies, so that stages may be faster."""
    return plan.swap is not None or plan.offload is not None or not plan.exact


def as_beside(taken: Plan, other: Plan) -> Rejected:
    """Say why another spread over the GPUs was not taken."""
    if other.pipeline is None:
        ways = {"offload": other.offload, "swap": other.swap, "state in shards": other.replicate}
        name = f"the whole model on each GPU ({', '.join(each for each, way in ways.items() if way)})"
        name = name.replace(" ()", "")
    else:
        name = format_count(other.pipeline.num_ranks, "stage")
    if taken.exact and not other.exact:
        return Rejected(name, "approximate")
    return Rejected(name, f"slower: {format_seconds(other.step_s or 0.0)} predicted for a step")
