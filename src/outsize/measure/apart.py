"""How far two ways to run a step are apart: in its loss, its gradients and the buffers it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

# A tensor's difference is seen against its own largest value, but one that is next to nothing beside the others
# against this share of theirs: the gradient of a bias before a batch norm is 0, and rounding all that is in it.
_LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Outcome:
    """What one step leaves behind."""

    loss: Mapping[str, Tensor]  # each term
    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Apart:
    """The largest relative differences between two steps; infinite where one has what the other has not."""

    loss: float
    gradients: float
    buffers: float
    most: str  # the tensor that differs most; "" where none does

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max(self.loss, self.gradients, self.buffers)

    @property
    def worst(self) -> str:
        """The largest of all and where it is, for a person."""
        return f"{self.largest:.1e} of the largest in {self.most}"

    def text(self) -> str:
        """Return the differences for a person."""
        each = f"loss differs by {self.loss:.2e}, gradients by {self.gradients:.2e}, buffers by {self.buffers:.2e}"
        return f"{each} of the largest"


def outcome_of(model: nn.Module, step: Callable[[], Mapping[str, Tensor]]) -> Outcome:
    """Run a step, which returns its loss terms, and copy what it leaves in a model that had no gradients."""
    terms = step()
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    kept = (terms, gradients, dict(model.named_buffers()))
    return Outcome(*({name: each.detach().clone() for name, each in part.items()} for part in kept))


def apart(ours: Outcome, theirs: Outcome) -> Apart:
    """Compare two outcomes, tensor by tensor."""
    loss = _furthest(ours.loss, theirs.loss)
    gradients = _furthest(ours.gradients, theirs.gradients)
    buffers = _furthest(ours.buffers, theirs.buffers)
    return Apart(loss[0], gradients[0], buffers[0], most=max(loss, gradients, buffers)[1])


def further(largest: float, difference: float) -> float:
    """Return the larger of two differences; not max(), which passes over one that is no number: that one stays."""
    return largest if difference <= largest or math.isnan(largest) else difference


def _furthest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[float, str]:
    least = _LEAST_SHARE * max((_largest(each) for each in theirs.values()), default=0.0)
    largest, name = 0.0, ""
    for each in sorted(ours.keys() | theirs.keys()):
        both = each in ours and each in theirs
        difference = _relative(ours[each], theirs[each], least) if both else math.inf
        if difference > largest:
            largest, name = difference, each
    return largest, name


def _relative(ours: Tensor, theirs: Tensor, least: float) -> float:
    difference = _largest(ours.double() - theirs.double())
    if difference == 0:
        return 0.0
    against = max(_largest(theirs), least)
    # what is no number differs from everything, and must not be lost in a maximum
    return difference / against if against > 0 and math.isfinite(difference) else math.inf


def _largest(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0
