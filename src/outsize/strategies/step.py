"""What a step is, and how one runs in parts: one after another, gradients and shares added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from outsize.data.batch import Batch

Terms = Mapping[str, Tensor]
Forward = Callable[[], AbstractContextManager[object]]  # what one forward pass runs in
LossTerms = Callable[[nn.Module, Batch], Terms]  # each term a sum; the step divides it by its total

Place = TypeVar("Place")  # of a part in its batch: some samples, a tile


@dataclass(frozen=True)
class LossParts:
    """Loss terms in two parts, between which the model runs: whoever cuts a model cuts here.

        batch --inputs--> what the model is called with --model--> answer --sums, with the batch--> terms

    Both are given the model for what it says of itself (the maps it wants, the size of its answer), not to run it.
    """

    inputs: Callable[[nn.Module, Batch], tuple[Any, ...]]
    sums: Callable[[nn.Module, Any, Batch], Terms]

    def __call__(self, model: nn.Module, batch: Batch) -> Terms:
        """Run the model on a batch and add up its losses."""
        # nobody but the model holds what goes into it: in bfloat16 its first layer keeps a copy
        return self.sums(model, model(*self.inputs(model, batch)), batch)


class Step(Protocol):
    """Batch in, gradients added, this part's share of each loss term out.

    `last` says that no further part of the same optimizer step follows: only then may replicas synchronise.
    """

    def __call__(self, batch: Batch, *, last: bool) -> Terms:
        """Run one part of an optimizer step."""


class StageWatch(Protocol):
    """Is told when a rank of a pipeline did what."""

    def now(self) -> float:
        """Tell the time."""

    def done(self, seen: Sequence[tuple[tuple[str, int, int], float, float]]) -> None:
        """Hear of a step: what was done, in which stage, for which micro-batch; when that began and ended."""


def in_parts(
    step: Step, cut: Callable[[Batch], Sequence[Place]], take: Callable[[Batch, Place], Batch]
) -> Step:
    """Return the step that runs the parts of a batch; `cut` says where they lie, `take` makes one when it is due.

    Parts draw random numbers (dropout) from keys of their own, so that none depends on what ran before it:

        the loop seeds by (seed, step) -> one number is drawn -> part p is seeded by that number + p

    Parts of parts do the same again. A batch that is one part draws nothing and is seeded by nobody: it runs as
    if it had never been cut.
    """

    def run(batch: Batch, *, last: bool) -> Terms:
        places = cut(batch)
        if len(places) == 1:
            return step(take(batch, places[0]), last=last)
        # drawn, not torch.initial_seed(): that one stays the same where nobody seeds before each step
        key = int(torch.randint(1 << 62, (), device="cpu"))
        sums: dict[str, Tensor] = {}
        for number, place in enumerate(places):
            torch.manual_seed(key + number)
            shares = step(take(batch, place), last=last and number == len(places) - 1)
            sums = {name: sums[name] + share if sums else share for name, share in shares.items()}
        return sums

    return run
