"""A training step on a part of each picture: the model exchanges borders; inputs and losses are of the part alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from outsize.data.batch import Batch
from outsize.plan.plan import Spatial
from outsize.ranks import World
from outsize.strategies.spatial.layers import Spread
from outsize.strategies.spatial.shard import shard_of
from outsize.strategies.step import Step, Terms


class SpreadStep:
    """Spreads a model over the ranks that share pictures, while a step runs and no longer.

    A model gets another class in place, which enters the spreading; so do blocks, for those run again by themselves, in
    backward and maybe in another thread.
    """

    def __init__(self, world: World, spatial: Spatial, model: nn.Module, blocks: Iterable[str] = ()) -> None:
        self._spread = Spread(shard_of(world, spatial))
        self._runs = self._is_inside = False
        for module in (model, *map(model.get_submodule, blocks)):
            kind: type[nn.Module] = getattr(module, "whole_class", type(module))
            members = {"forward": self._entering(kind.forward), "whole_class": kind}
            module.__class__ = type(kind.__name__, (kind,), {**members, "__module__": kind.__module__})

    def around(self, step: Step) -> Step:
        """Return a step in which the model is spread."""

        def run(batch: Batch, *, last: bool) -> Terms:
            self._runs, self._is_inside = True, False
            try:
                return step(batch, last=last)
            finally:
                self._runs = False

        return run

    def _entering(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def in_parts(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._runs or self._is_inside:
                return forward(module, *args, **kwargs)
            self._is_inside = True
            try:
                with self._spread:
                    return forward(module, *args, **kwargs)
            finally:
                self._is_inside = False

        return in_parts
