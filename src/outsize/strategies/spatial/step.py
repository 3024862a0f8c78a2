"""A training step on a part of each picture: the model exchanges borders, its losses are of the part alone."""

from __future__ import annotations

from typing import Any

from torch import nn

from outsize.data.batch import Batch
from outsize.errors import PlanError, explain
from outsize.plan.plan import Spatial
from outsize.ranks import World
from outsize.strategies.spatial.layers import Spread
from outsize.strategies.spatial.shard import shard_of
from outsize.strategies.step import LossParts, LossTerms, Step, Terms


class SpreadStep:
    """Runs forward and backward of a model over ranks that share pictures; inputs and losses are each rank's own."""

    def __init__(self, world: World, spatial: Spatial) -> None:
        self._spread = Spread(shard_of(world, spatial))

    def terms(self, loss_terms: LossTerms) -> LossTerms:
        """Return loss terms whose model is spread, and nothing else."""
        if not isinstance(loss_terms, LossParts):
            found, need = (
                "loss terms that run it somewhere inside",
                "terms of which the model's call is a part",
            )
            raise PlanError(explain("a model cannot be spread over ranks", found, need, "use --spread whole"))
        parts = loss_terms

        def inputs(model: nn.Module, batch: Batch) -> tuple[Any, ...]:
            with self._spread.resting():
                return parts.inputs(model, batch)

        def sums(model: nn.Module, answer: Any, batch: Batch) -> Terms:
            with self._spread.resting():
                return parts.sums(model, answer, batch)

        return LossParts(inputs, sums)

    def around(self, step: Step) -> Step:
        """Return a step in which blocks that run again in backward are spread, too."""

        def run(batch: Batch, *, last: bool) -> Terms:
            with self._spread:
                return step(batch, last=last)

        return run
