"""Which ranks are a pipeline, and which are replicas of the same stages.

rank   0  1    2  3        two replicas of two stages: neighbours are a pipeline, for they exchange the most
stage  0  1    0  1        gradients are summed over ranks 0 and 2, and over 1 and 3
"""

from __future__ import annotations

from dataclasses import replace

from outsize.plan.plan import Pipeline
from outsize.ranks import World
from outsize.strategies.replicate import Share, share_out


def stages_among(world: World, pipeline: Pipeline) -> World:
    """Return the ranks that this one is a pipeline with; all ranks come by here."""
    num = pipeline.num_ranks
    return world.split([range(first, first + num) for first in range(0, world.size, num)], "up", "down")


def replicas_among(world: World, pipeline: Pipeline) -> World:
    """Return the ranks that have the same stages as this one; all ranks come by here."""
    num = pipeline.num_ranks
    return world.split([range(stage, world.size, num) for stage in range(num)])


def share_among(world: World, pipeline: Pipeline, num_samples: int, *, local_norm: bool = False) -> Share:
    """Deal the samples of a batch out over replicas, all ranks of which have the same."""
    share = share_out(replicas_among(world, pipeline), num_samples, pipeline.num_micro)
    return replace(share, stages=stages_among(world, pipeline), local_norm=local_norm)
