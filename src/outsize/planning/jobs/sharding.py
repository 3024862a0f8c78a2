"""A training whose ranks each keep a shard of the optimizer's state: what its step needs, and its plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from outsize.job import LimitsSection
from outsize.plan.facts import Facts
from outsize.plan.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from outsize.plan.sharing import OverRanks
    from outsize.plan.step import StepFacts
    from outsize.plan.way import StepRequest
    from outsize.units import Size


def in_shards(task: StepRequest, model: nn.Module, num_ranks: int) -> StepRequest:
    """Return a step as the rank runs it that keeps most of the state."""
    from outsize.plan.sharing import largest_share, with_state_in_shards

    share = largest_share(_trained_bytes(model), num_ranks)

    def step_of(num_samples: int, side_px: Size) -> StepFacts:
        return with_state_in_shards(task.step_of(num_samples, side_px), share)

    whole = task.blocks_of
    if whole is None:
        return replace(task, step_of=step_of)

    def blocks_of(num_samples: int, side_px: Size, blocks: tuple[str, ...]) -> StepFacts:
        return with_state_in_shards(whole(num_samples, side_px, blocks), share)

    return replace(task, step_of=step_of, blocks_of=blocks_of)


def sharded_plan(
    limits: LimitsSection, model: nn.Module, known: Facts, task: StepRequest, over: OverRanks
) -> Plan:
    """Choose how a step runs on ranks that each keep a shard of the optimizer's state."""
    from outsize.plan.sharing import choose_over_ranks, sharded

    plan = choose_over_ranks(known, limits, in_shards(task, model, over.num), over)
    return sharded(plan, over.num, sum(_trained_bytes(model)), over.link.bytes_per_s)


def _trained_bytes(model: nn.Module) -> list[int]:
    return [each.numel() * each.element_size() for each in model.parameters() if each.requires_grad]
