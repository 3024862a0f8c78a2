"""Whether all that a training learns are numbers still: losses, weights and the optimizer's state.

Nothing here makes a GPU wait but where it waits anyway: losses are read ten steps at a time, weights when saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outsize.errors import DivergedError, explain
from outsize.measure.finite import bad_weight, first_bad


@dataclass(frozen=True)
class BadLoss:
    """The first loss that is no number."""

    step: int
    term: str
    value: float


class LastLosses:
    """The losses of the steps since they were last read, where the steps have left them."""

    def __init__(self) -> None:
        self._terms: list[tuple[int, str, Tensor]] = []

    def add(self, step: int, terms: Mapping[str, Tensor]) -> None:
        """Take note of a step's losses without reading them."""
        self._terms += [(step, name, value.detach()) for name, value in terms.items()]

    def read(self) -> tuple[int | None, BadLoss | None]:
        """Return the first step that was noted since the last time, and the first loss that is no number."""
        terms, self._terms = self._terms, []
        if not terms:
            return None, None
        values = torch.stack([value.reshape(()).float() for _, _, value in terms]).tolist()
        bad = (
            BadLoss(step, name, value)
            for (step, name, _), value in zip(terms, values, strict=True)
            if not math.isfinite(value)
        )
        return terms[0][0], next(bad, None)


class SoundnessWatch:
    """Ends a training whose numbers go bad, and tells of each saved state whether it was good.

    A state is good once the step behind it had losses that are numbers: its weights may be finite, and too large for
    any answer. The one before it is kept until then.

        step    38        39        40 | saved | 41            50
        losses  0.9       2e9       1e31       | inf           read: bad at 41, and so is what was saved
    """

    def __init__(self, good: Callable[[], None], bad: Callable[[], None], saved_step: int) -> None:
        """`saved_step` is that of the state that a training is resumed from."""
        self._good, self._bad = good, bad
        self._losses, self._saved_step, self._is_open = LastLosses(), saved_step, True
        self.add = self._losses.add

    def look(
        self, model: nn.Module, step: int, lr: float, state: Callable[[], Mapping[str, Tensor]] | None = None
    ) -> None:
        """Read the losses, and the weights, too, where the optimizer's `state` is given; raise if any is no number."""
        first, bad = self._losses.read()
        if bad is not None:
            if self._is_open and bad.step == self._saved_step + 1:
                self._bad()
            raise self._diverged(bad.step, f"{bad.term} = {bad.value}", lr, model)
        if first is not None and self._is_open:
            self._good()
            self._is_open = False
        if state is None:
            return
        if bad_weight(model) is not None:
            raise self._diverged(step, "losses that are numbers", lr, model)
        entry = first_bad(state())
        if entry is not None:
            raise self._diverged(step, f"NaN or infinity in the optimizer's {entry}", lr, model)

    def saved(self, step: int) -> None:
        """Say that a state was saved after a step."""
        self._saved_step, self._is_open = step, True

    def _diverged(self, step: int, found: str, lr: float, model: nn.Module) -> DivergedError:
        name = bad_weight(model)
        weights = (
            "all weights are finite" if name is None else f"{name} is the first weight with NaN or infinity"
        )
        found = f"{found} at learning rate {lr:g}, and {weights}"
        remedy = "lower train.lr, add train.warmup_steps, or set train.precision to fp32"
        return DivergedError(explain(f"training diverged at step {step}", found, "finite numbers", remedy))
