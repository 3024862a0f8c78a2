"""A planned pipeline played out: the order in which each rank works, the same to all ranks, carried out as it is."""

from __future__ import annotations

from typing import cast

from outsize.plan.plan import Pipeline
from outsize.plan.simulate.pipeline import Order, Played, ScheduleName, Stages, StageWork, play

__all__ = ["play_planned"]


def play_planned(pipeline: Pipeline, num_micro: int) -> Played:
    """Play a step of so many micro-batches out."""
    order = Order(pipeline.ahead, pipeline.longest_first)
    return play(_stages(pipeline), num_micro, cast(ScheduleName, pipeline.schedule), order)


def _stages(pipeline: Pipeline) -> Stages:
    works = tuple(
        StageWork(
            each.rank,
            each.forward_s,
            each.backward_s,
            each.forward_s if each.recomputes else 0.0,
            each.kept_bytes,
            each.fixed_bytes,
            each.weights_s,
            each.split_s,
        )
        for each in pipeline.stages
    )
    messages = {(one, other): seconds for one, other, seconds in pipeline.messages}
    return Stages(works, messages, pipeline.copies_overlap)
