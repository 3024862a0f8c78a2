"""Puts the strategies of a plan in order around a plain step; the one place that knows their order."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
from torch import nn

from outsize.data.batch import Batch
from outsize.plan.plan import Plan
from outsize.strategies.across import refuse_norms_across
from outsize.strategies.compiled import compiled
from outsize.strategies.micro import micro_batched
from outsize.strategies.recompute import Tell, saving
from outsize.strategies.step import Forward, LossTerms, Step, Terms
from outsize.strategies.tiled import tiled

__all__ = ["LossTerms", "Step", "Terms", "compose"]


def compose(
    model: nn.Module, loss_terms: LossTerms, plan: Plan, *, bf16: bool, tell: Tell = warnings.warn
) -> Step:
    """Return the step that carries the plan out; what cannot be done as planned it will `tell`.

    From the layers outward: stages, compile, replicas, run the stages, saved-tensor hooks, tiles, micro-batches.
    Each is one line here and a no-op where the plan has no setting for it. Gradients are summed, never averaged.
    """
    saves = plan.recompute is not None or plan.swap is not None
    forward: Forward = saving(model, plan.recompute, plan.swap, tell) if saves else nullcontext
    forward = compiled(model, plan.compile, forward) if plan.compile is not None else forward
    step = _plain(model, loss_terms, forward, bf16=bf16)
    step = tiled(step, plan.tiles) if plan.tiles is not None else step
    step = micro_batched(step, plan.micro_batches) if plan.micro_batches is not None else step
    return refuse_norms_across(step, model, plan) if plan.exact else step


def _plain(model: nn.Module, loss_terms: LossTerms, forward: Forward, *, bf16: bool) -> Step:
    def step(batch: Batch, *, last: bool) -> Terms:  # noqa: ARG001 - replicas will want to know
        narrow = torch.autocast(batch.images.device.type, torch.bfloat16) if bf16 else nullcontext()
        with narrow, forward():
            sums = loss_terms(model, batch)
        shares = {name: value / batch.totals[name] for name, value in sums.items()}
        torch.stack(list(shares.values())).sum().backward()
        return {name: share.detach() for name, share in shares.items()}

    return step
