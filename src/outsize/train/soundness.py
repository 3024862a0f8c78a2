"""Whether all that a training learns are numbers still: losses, weights and the optimizer's state.

Nothing here makes a GPU wait but where it waits anyway: losses are read ten steps at a time, weights when saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from outsize.errors import DivergedError, explain

_STATISTICS = ("running_mean", "running_var")


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


class Watch:
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


def bad_weight(model: nn.Module) -> str | None:
    """Name the first weight of a model that holds NaN or infinity.

    Of buffers only statistics may not be infinite: others, such as masks of attention, may be so on purpose.
    """
    free = {name for name, _ in model.named_buffers() if not name.endswith(_STATISTICS)}
    return first_bad(model.state_dict(), may_be_infinite=free)


def first_bad(tensors: Mapping[str, Tensor], may_be_infinite: Iterable[str] = ()) -> str | None:
    """Name the first of these tensors that holds NaN, or infinity where it may not."""
    free = frozenset(may_be_infinite)
    named = [
        (name, value)
        for name, value in ((name, _held_here(each)) for name, each in tensors.items())
        if (value.is_floating_point() or value.is_complex()) and value.numel()
    ]
    for devices_tensors in _by_device(named).values():
        found = torch.stack([_sound(value.detach(), name in free) for name, value in devices_tensors])
        for (name, _), sound in zip(devices_tensors, found.tolist(), strict=True):
            if not sound:
                return name
    return None


def _held_here(value: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: FSDP's weights cannot be read as a whole without copies."""
    to_local = getattr(value, "to_local", None)
    return value if to_local is None else cast(Tensor, to_local())


def _by_device(named: Iterable[tuple[str, Tensor]]) -> dict[torch.device, list[tuple[str, Tensor]]]:
    groups: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, value in named:
        groups.setdefault(value.device, []).append((name, value))
    return groups


def _sound(value: Tensor, may_be_infinite: bool) -> Tensor:
    """Return whether a tensor is sound, on its device; its least and largest number tell without a copy of it."""
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    least, largest = value.aminmax()
    return ~(least.isnan() | largest.isnan()) if may_be_infinite else least.isfinite() & largest.isfinite()
