"""Puts the strategies of a plan in order around a plain step; the one place that knows their order."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
from torch import nn

from outsize.data.batch import Batch
from outsize.plan.plan import Fuse, Offload, Plan
from outsize.strategies.compiled import compiled
from outsize.strategies.cudagraph import Recordings, graphed
from outsize.strategies.forward import Tell, saving
from outsize.strategies.kernels import fused_layers, fusing, made_later
from outsize.strategies.pipeline import piped
from outsize.strategies.replicate import Share, replicated
from outsize.strategies.spatial import SpreadStep
from outsize.strategies.step import Forward, LossTerms, Step, Terms, in_parts
from outsize.strategies.steps import micro_batched, refuse_norms_across, tiled
from outsize.strategies.swap import Meter

__all__ = ["LossTerms", "Step", "Terms", "compose"]


def compose(
    model: nn.Module,
    loss_terms: LossTerms,
    plan: Plan,
    *,
    bf16: bool,
    tell: Tell = warnings.warn,
    meter: Meter | None = None,
    recordings: Recordings | None = None,
    share: Share | None = None,
) -> Step:
    """Return the step that carries the plan out; what cannot be done as planned it will `tell`.

    A `meter` reads what is moved to host memory; `recordings` lets the memory of a recorded step go. Where a rank has a
    `share` of each batch, gradients and shares of loss terms are those of all ranks.

    From the layers outward: weights on the host (in place, for good), stages, compile, run the stages,
    saved-tensor hooks, borders of pictures over ranks, fused layers (both ways of a step run in them), a CUDA graph,
    replicas, tiles, micro-batches. Each is one line here and a no-op where the plan has no setting for it. Gradients
    are summed, never averaged.
    """
    if plan.offload is not None:
        _offload(model, plan.offload, bf16=bf16)
    hooked = plan.recompute is not None or plan.swap is not None
    saved = saving(model, plan.recompute, plan.swap, tell, meter) if hooked else None
    forward: Forward = nullcontext if saved is None else saved
    forward = compiled(model, plan.compile, forward) if plan.compile is not None else forward
    spread = None
    if share is not None and plan.spatial is not None and plan.spatial.exchanges:
        blocks = () if plan.recompute is None else plan.recompute.blocks
        spread = SpreadStep(share.world, plan.spatial, model, blocks)
    if plan.pipeline is not None and share is not None:
        step = piped(model, loss_terms, plan.pipeline, share, bf16=bf16)
    else:
        step = _plain(model, loss_terms, forward, bf16=bf16)
    step = spread.around(step) if spread is not None else step
    step = _fused(step, model, plan.fuse) if plan.fuse is not None else step
    if plan.graph and plan.is_recordable:
        shuttle = None if saved is None else saved.shuttle
        step = graphed(step, model, tell, beside=shuttle, recordings=recordings, paged=plan.paged)
    if share is not None:
        step = replicated(step, model, share.world, early=plan.pipeline is None)
    step = tiled(step, plan.tiles) if plan.tiles is not None else step
    if share is not None and plan.pipeline is None:
        step = in_parts(step, share.cut, share.take)
    elif plan.micro_batches is not None and plan.pipeline is None:
        step = micro_batched(step, plan.micro_batches)
    return refuse_norms_across(step, model, plan) if plan.exact else step


def _offload(model: nn.Module, setting: Offload, *, bf16: bool) -> None:
    from outsize.strategies.offload import compute_device, offload  # loads much that others do not need

    offload(model, setting, compute_device(model), bf16=bf16)


def _fused(step: Step, model: nn.Module, fuse: Fuse) -> Step:
    """Run a step with fused layers, or without their kernels where those cannot be built: the maths are the same."""
    block = fused_layers(model, fuse)

    def run(batch: Batch, *, last: bool) -> Terms:
        with block() if fusing(batch.images.device.type) else made_later(model, fuse.later):
            return step(batch, last=last)

    return run


def _plain(model: nn.Module, loss_terms: LossTerms, forward: Forward, *, bf16: bool) -> Step:
    def step(batch: Batch, *, last: bool) -> Terms:  # noqa: ARG001 - replicas want to know
        narrow = torch.autocast(batch.images.device.type, torch.bfloat16) if bf16 else nullcontext()
        with narrow, forward():
            sums = loss_terms(model, batch)
        shares = {name: value / batch.totals[name] for name, value in sums.items()}
        torch.stack(list(shares.values())).sum().backward()
        return {name: share.detach() for name, share in shares.items()}

    return step
