"""What `plan`, `train` and `predict` decide by: a machine, here or named, and the facts of a model on it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from outsize.errors import OutsizeError, PlanError
from outsize.job import Job
from outsize.plan.facts import Facts
from outsize.plan.plan import Fuse, Plan
from outsize.plan.seen import as_seen
from outsize.plan.step import StepFacts
from outsize.planning.jobs.sharding import in_shards, sharded_plan
from outsize.planning.jobs.staging import as_beside, gives_up_much, replicas_of, staged_plan, with_stages
from outsize.planning.situation import AS_USUAL, Situation, host_bytes, may_page, may_record, share_of
from outsize.progress import Reporter
from outsize.units import Size, format_size, sides_of, size_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from outsize.plan.effort import Effort
    from outsize.plan.plan import Spatial
    from outsize.plan.sharing import OverRanks
    from outsize.plan.way import StepRequest
    from outsize.tiles.halo import Halo


_FEW = 2  # samples that show which operations follow one another: batch norm of a small window wants more than one


# Steps that were followed on shapes, which takes seconds: fusing, a profile and the plan look at the same ones.
_FOLLOWED: WeakKeyDictionary[nn.Module, dict[Hashable, StepFacts]] = WeakKeyDictionary()
_MOST_FOLLOWED = 32  # of a model


@dataclass(frozen=True)
class Plans:
    """The plans of a job, and what they were made from; resident, while it predicts, is the optimizer's state."""

    facts: Facts  # with those of a plain training step
    train: Plan
    predict: Plan
    resident_bytes: int


def taught(
    job: Job,
    model: nn.Module,
    num_bands: int,
    where: Situation,
    reporter: Reporter,
    effort: Effort | None = None,
) -> Situation:
    """Return the situation as real steps of the job show it, on a GPU that is here; compiled on any device here."""
    from outsize.planning.trying import learn_here, try_compiled, why_so

    where = replace(where, fuse=_fuse(job, model, num_bands, where))
    if where.device is None:
        return where
    step_of = _step_of(job, model, num_bands, where)
    if job.train.compile and where.num_gpus == 1:
        where = replace(where, compiled=try_compiled(job, model, num_bands, where, step_of, reporter))
    if where.kind != "cuda" or where.device is None:
        return where
    learnt = learn_here(job, model, num_bands, where, step_of, reporter, effort)
    where = replace(where, note=why_so(job, where, step_of, learnt) or "")
    if learnt is None:
        return where
    return replace(where, learnt=learnt, machine=replace(where.machine, usable_share=learnt.usable_share))


def make_plans(
    job: Job, model: nn.Module, num_bands: int, facts: Facts, scene_px: tuple[int, int], where: Situation
) -> Plans:
    """Plan training and prediction; prediction runs beside the optimizer's state, for validation needs it too."""
    from outsize.infer.passes import pass_graph
    from outsize.models import num_inputs
    from outsize.plan.cost import summary
    from outsize.plan.predict import choose_predict
    from outsize.tasks import task_of

    task = train_task(job, model, num_bands, facts.halo, sharing_samples(where))
    known = replace(facts, train=summary(task.step_of(task.batch, task.side_px), task.batch, task.side_px))
    plan = _explaining_padding(_train_plan(job, model, num_bands, known, task, where), job, facts)
    task = task if plan.replicate is None else in_shards(task, model, plan.replicate.shards)
    step = task.step_of(task.batch, task.side_px)
    plan = replace(plan, why=(*plan.why, where.note)) if where.note else plan
    if plan.pipeline is not None:
        resident_bytes = plan.pipeline.optimizer_bytes[0]
    elif plan.offload is None:
        states = [each for each in step.storages if each.role == "optimizer" and each.born < 0]
        resident_bytes = sum(each.size_bytes for each in states)
    else:  # neither the optimizer is there, nor are the weights that are counted
        resident_bytes = plan.offload.device_bytes - sum(task.weights.values())
    cutting = task_of(job.task).cutting
    limits = cutting.limits(job.limits)
    laid_out = partial(pass_graph, model, num_inputs(model, num_bands), scene_px, facts.halo.stride_px)
    predict = choose_predict(
        known,
        limits,
        scene_px,
        resident_bytes=resident_bytes,
        laid_out=laid_out if cutting.exactly else None,
    )
    return Plans(known, plan, predict, resident_bytes)


def over_ranks(job: Job, model: nn.Module, num_bands: int, where: Situation) -> OverRanks:
    """Return what the planner is told of the ranks that share a batch."""
    from outsize.plan.sharing import BordersSent, OverRanks
    from outsize.strategies.spatial import borders_of
    from outsize.tasks import task_of

    section, task = job.train, task_of(job.task)

    def borders(spatial: Spatial) -> BordersSent | str:
        if not task.tiles_train:
            return "samples of this task are not cut"
        if not task.is_local(section.loss):
            return f"the loss {section.loss} looks at a whole sample"
        if where.sharing.local_norm:
            return "--local-norm keeps norms apart"
        found = borders_of(model, spatial, num_bands, task.loss_on_shapes(section.loss, where.most_objects))
        return found if isinstance(found, str) else BordersSent(*found)

    return OverRanks(where.num_gpus, section.batch, where.sharing.spread, where.between, borders)


def sharing_samples(where: Situation) -> Situation:
    """Return a situation of as many GPUs as share the samples of a step: stages of one model have the same ones."""
    num_stages = where.sharing.stages
    return where if num_stages is None else replace(where, num_gpus=replicas_of(where.num_gpus, num_stages))


def _train_plan(
    job: Job, model: nn.Module, num_bands: int, known: Facts, task: StepRequest, where: Situation
) -> Plan:
    """Choose how a step runs: in stages where that is asked for, or where several GPUs are faster or exact so."""
    from outsize.plan.sharing import choose_over_ranks

    if (where.sharing.stages or 1) > 1:
        return staged_plan(job, model, num_bands, known, task, where)
    over = over_ranks(job, model, num_bands, where)
    if where.sharing.shard and where.num_gpus > 1:
        return sharded_plan(job.limits, model, known, task, over)
    is_free = where.sharing == AS_USUAL
    refused: PlanError | None = None
    found: Plan | None
    try:
        found = choose_over_ranks(known, job.limits, task, over)
    except PlanError as error:
        found, refused = None, error
    if found is None or not found.exact:  # one that is exact goes before one that is not
        found = _by_slices(job, model, num_bands, known, task, where) or found
    whole = [] if found is None else [found]
    plans = whole
    if where.num_gpus > 1 and all(map(gives_up_much, whole)):
        with suppress(PlanError):
            plans = [*plans, sharded_plan(job.limits, model, known, task, over)]
        if is_free and all(map(gives_up_much, plans)):
            plans = [*plans, *_in_stages(job, model, num_bands, known, where)]
    if not plans:
        assert refused is not None
        raise refused  # it says what a single GPU would need
    best = min(plans, key=lambda each: (not each.exact, each.step_s or math.inf))
    others = tuple(as_beside(best, each) for each in plans if each is not best)
    return replace(best, rejected=(*others, *best.rejected)) if others else best


def _in_stages(job: Job, model: nn.Module, num_bands: int, known: Facts, where: Situation) -> Iterator[Plan]:
    """Yield the plan of each number of stages that divides the GPUs, as far as there is one."""
    for num_stages in range(2, where.num_gpus + 1):
        if where.num_gpus % num_stages:
            continue
        staged = with_stages(where, num_stages)
        try:
            asked = train_task(job, model, num_bands, known.halo, sharing_samples(staged))
            yield staged_plan(job, model, num_bands, known, asked, staged)
        except OutsizeError:  # no cut of so many stages fits, or the model cannot be traced
            continue


def _by_slices(
    job: Job, model: nn.Module, num_bands: int, known: Facts, task: StepRequest, where: Situation
) -> Plan | None:
    """Return an exact plan that makes what is joined and enlarged by slices; None where there is none."""
    from outsize.plan.sharing import choose_over_ranks
    from outsize.strategies.kernels import made_by_slices

    if where.num_gpus > 1:
        return None
    later = made_by_slices(model, task.step_of(task.batch, task.side_px))
    if not later:
        return None
    fuse = replace(where.fuse or Fuse(), later=later)
    where = replace(where, compiled=(), fuse=fuse)
    asked = train_task(job, model, num_bands, known.halo, where)
    try:
        found = choose_over_ranks(known, job.limits, asked, over_ranks(job, model, num_bands, where))
    except PlanError:
        return None
    return replace(found, why=(fuse.why_later, *found.why)) if found.exact else None


def _explaining_padding(plan: Plan, job: Job, facts: Facts) -> Plan:
    """Add to the reasons of a plan that windows are no multiples of what the model works in: it fills them up."""
    from outsize.tasks import task_of

    stride_px, window_px = facts.halo.stride_px, job.train.window_px
    if not task_of(job.task).tiles_train or not any(side_px % stride_px for side_px in window_px):
        return plan
    full_px = [-(-side_px // stride_px) * stride_px for side_px in window_px]
    text = f"the model works in steps of {stride_px} px: windows of {format_size(job.train.tile_px)} are"
    return replace(plan, why=(f"{text} filled up to {format_size(size_of(*full_px))}", *plan.why))


def facts_on(
    model: nn.Module, num_bands: int, where: Situation, task: str | None = None, halo: Halo | None = None
) -> Facts:
    """Gather the facts of a model on a machine; its halo, where that is not given."""
    from outsize.tasks import FIRST, task_of

    clock = replace(where.clock, training=False)
    times: dict[str, Any] = {"rates": clock.rates, "op_s": clock.op_s}
    cutting = task_of(task or FIRST).cutting
    facts = cutting.facts(model, num_bands, where.machine, bf16=where.bf16, halo=halo, **times)
    return replace(facts, learnt=where.learnt)


def train_task(job: Job, model: nn.Module, num_bands: int, halo: Halo, where: Situation) -> StepRequest:
    """Describe the training step of a job to the planner; GPUs share its batch."""
    from outsize.measure.across import OVER_PIXELS, OVER_SAMPLES, first_channel_dropout, first_norm
    from outsize.plan.search import Link
    from outsize.plan.way import StepRequest
    from outsize.strategies.offload import weights_of
    from outsize.tasks import task_of

    section, task = job.train, task_of(job.task)
    step_of = _step_of(job, model, num_bands, where)
    across_samples = first_norm(model, OVER_SAMPLES)
    not_local = None if task.is_local(section.loss) else f"the loss {section.loss} looks at a whole sample"
    return StepRequest(
        batch=share_of(section.batch, where.num_gpus),
        side_px=section.tile_px,
        step_of=step_of,
        blocks_of=step_of,
        compiled=where.compiled,
        fuse=where.fuse,
        # a stride as long as the window: there is no smaller tile
        halo=halo if task.tiles_train else replace(halo, stride_px=max(section.window_px)),
        across_samples=across_samples,
        spread=_spread(across_samples, section.batch, where),
        across_pixels=first_norm(model, OVER_PIXELS) or first_channel_dropout(model) or not_local,
        # on a CPU all memory is the host's
        link=Link.of(where.rates, where.num_gpus) if where.kind == "cuda" else None,
        host_bytes=host_bytes(job.limits.host_memory, where),
        weights=weights_of(model) if where.kind == "cuda" and where.num_gpus == 1 else {},
        records=may_record(job, where),
        pages=may_record(job, where) and may_page(where),
        **where.clock.settings(),
    )


def _spread(across_samples: str | None, batch: int, where: Situation) -> str | None:
    """Say why ranks that share a batch train otherwise than one: norms that stay apart see the samples of one."""
    if across_samples is None or where.num_gpus == 1 or not where.sharing.local_norm:
        return None
    share = share_of(batch, where.num_gpus)
    seen = f"each of {where.num_gpus} ranks has at most {share} of {batch} samples"
    return f"{across_samples}, and {seen}: so --local-norm wants it; without it norms are those of all ranks"


class _StepOf(Protocol):
    def __call__(self, num_samples: int, side_px: Size, blocks: tuple[str, ...] = (), /) -> StepFacts: ...


def _step_of(job: Job, model: nn.Module, num_bands: int, where: Situation) -> _StepOf:
    """Return what tells the facts of a step by its number of samples, the size of its windows, and blocks run again."""
    from outsize.measure.tracing import trace_step
    from outsize.strategies.blocks import checkpointed
    from outsize.strategies.kernels import fused_layers
    from outsize.tasks import task_of
    from outsize.train.optimizer import optimizer_of

    section, task = job.train, task_of(job.task)
    make_optimizer = partial(
        optimizer_of,
        name=section.optimizer,
        lr=section.lr,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        on_gpu=where.kind == "cuda",
    )

    loss = task.loss_on_shapes(section.loss, where.most_objects)
    fuse = where.fuse
    around = None if fuse is None else lambda model: fused_layers(model, fuse)()
    # all that the facts hang on besides a step's size: rates, samples and limits change none of them
    trains = tuple(each.requires_grad for each in model.parameters())
    about = (job.task, section.loss, section.optimizer, num_bands, where.most_objects)
    known = _FOLLOWED.setdefault(model, {})

    def follow(num_samples: int, side_px: Size, blocks: tuple[str, ...]) -> StepFacts:
        def loss_of(model: nn.Module, images: Tensor) -> Tensor:
            with checkpointed(model, blocks):
                return loss(model, images)

        return trace_step(
            model,
            (num_samples, num_bands, *sides_of(side_px)),
            loss=loss_of,
            optimizer=make_optimizer,
            bf16=where.bf16,
            device=where.kind,
            around=around,
        )

    @lru_cache(maxsize=32)
    def step_of(num_samples: int, side_px: Size, blocks: tuple[str, ...] = (), /) -> StepFacts:
        key = (*about, trains, where.bf16, where.kind, fuse, num_samples, side_px, blocks)
        if key not in known:
            if len(known) >= _MOST_FOLLOWED:
                known.pop(next(iter(known)))
            known[key] = follow(num_samples, side_px, blocks)
        return known[key] if where.learnt is None else as_seen(known[key], where.learnt)

    return step_of


def _fuse(job: Job, model: nn.Module, num_bands: int, where: Situation) -> Fuse | None:
    """Return the layers that run by kernels of our own; None where the job does not want that, or it cannot be."""
    from outsize.errors import TraceError
    from outsize.strategies.kernels import fusible, fusing

    if where.num_gpus > 1 and not where.sharing.local_norm:
        return None  # the kernels norm by the samples of one rank
    if where.kind != "cuda" or not job.train.fuse or (where.device is not None and not fusing("cuda")):
        return None
    try:
        facts = _step_of(job, model, num_bands, where)(_FEW, job.train.tile_px)
    except TraceError:
        return None  # reported where the step itself is followed
    return fusible(model, facts)
