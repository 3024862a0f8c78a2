"""Forward, loss and backward of a batch in one call, which a GPU may replay as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from outsize.data.batch import Batch
from outsize.measure.tensors import tensors_in
from outsize.strategies.cudagraph import Beside, Recordings, graphed
from outsize.strategies.step import Terms

RunOwned = Callable[[Any, float], Tensor]  # a batch, and what its loss is multiplied by -> the loss


@dataclass(frozen=True)
class Owned:
    """What a step that is owned consists of: a loss of the model on a batch, under autocast or not."""

    loss: Callable[[nn.Module, Any], Tensor]
    device: torch.device
    autocast: torch.dtype | None = None  # what autocast casts to; None: it is off
    captures: bool = False  # as one CUDA graph, after a few steps

    def run(self, model: nn.Module, batch: Any, weight: float = 1.0) -> Tensor:
        """Add the gradients of a batch to those that are there, and return its loss."""
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            value = self.loss(model, batch)
        (value if weight == 1 else weight * value).backward()
        return value.detach()

    def prepared(self, model: nn.Module, tell: Callable[[str], object], beside: Beside | None) -> RunOwned:
        """Return what runs the step of a batch: captured where nothing is added to, kernel by kernel elsewhere."""
        if not self.captures:
            return lambda batch, weight: self.run(model, batch, weight)

        def terms(batch: Batch, *, last: bool) -> Terms:
            assert last  # of a step in one part
            return {"loss": self.run(model, cast(_AnyBatch, batch).tree)}

        replayed = graphed(terms, model, tell, beside=beside, recordings=Recordings())

        def run(batch: Any, weight: float) -> Tensor:
            if weight != 1:  # of several that are added up: a replay adds to nothing
                return self.run(model, batch, weight)
            return replayed(cast(Batch, _AnyBatch.of(batch)), last=True)["loss"]

        return run


@dataclass(frozen=True)
class _AnyBatch:
    """Anything that holds tensors, as a capture wants a batch: what is no tensor must be the same in each replay."""

    tree: Any
    totals: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Any) -> _AnyBatch:
        leaves, structure = tree_flatten(tree)
        return cls(tree, {repr((structure, [each for each in leaves if not isinstance(each, Tensor)])): 1.0})

    @property
    def images(self) -> Tensor:
        return self.tensors()[0]

    def tensors(self) -> list[Tensor]:
        return tensors_in(self.tree)

    def each(self, change: Callable[[Tensor], Tensor]) -> _AnyBatch:
        return replace(self, tree=tree_map_only(Tensor, change, self.tree))
