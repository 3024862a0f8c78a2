"""Keeps what a step changes, so that one that failed, or that was only to be tried, leaves no trace."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from outsize.errors import explain, listed
from outsize.measure.state.reachable import Reachable


class Before:
    """What a step changes besides gradients, buffers and the state of random numbers, as it was before."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: dict[nn.Module, dict[str, Tensor | None]] = {}  # buffers, which a module may replace
        self._copies: list[Tensor] = []
        self._drawn: tuple[Tensor, list[Tensor]] | None = None

    def take(self) -> None:
        """Copy it; a few kernels for all buffers together, into memory that stays."""
        if any(each.grad is not None for each in self._model.parameters()):
            raise RuntimeError("a step that begins with gradients cannot be taken back: they would be lost")
        self._held = {module: dict(module._buffers) for module in self._model.modules()}
        buffers = list(self._model.buffers())
        if [(each.shape, each.dtype, each.device) for each in buffers] != [
            (each.shape, each.dtype, each.device) for each in self._copies
        ]:
            self._copies = [torch.empty_like(each) for each in buffers]
        _copy(self._copies, buffers)
        self._drawn = _draws()

    def give_back(self) -> None:
        """Put it back, and free what the attempt has left."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for module, held in self._held.items():
            module._buffers.clear()
            module._buffers.update(held)
        _copy(list(self._model.buffers()), self._copies)
        assert self._drawn is not None
        _set_draws(*self._drawn)
        _free()


def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    if to:
        with torch.no_grad():
            torch._foreach_copy_(list(to), list(source))


@contextmanager
def reach_as_it_was(model: nn.Module, *others: Any, warns: bool = True) -> Iterator[None]:
    """Take back what running a model does to what its code can reach; weights and buffers are left alone."""
    with _put_back(Reachable(model, *others, besides=("_parameters", "_buffers")), warns=warns):
        yield


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Take back what running a model does to all that its forward can reach but its weights, and what it draws."""
    reachable = Reachable(model, besides=["_parameters"])
    with _drawing_as_before(), _put_back(reachable):
        yield


@contextmanager
def left_as_it_was(model: nn.Module, *others: Any) -> Iterator[None]:
    """Take back what steps inside do to a model and to all that its forward can reach, the example among it."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with _drawing_as_before(), _put_back(Reachable(model, *others), warns=True):
            for parameter, _ in gradients:
                parameter.grad = None
            model.train()
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        _free()


@contextmanager
def _put_back(reachable: Reachable, *, warns: bool = False) -> Iterator[None]:
    try:
        yield
    finally:
        left = reachable.put_back()
        if left and warns:
            text = explain(
                "running the model before its steps went on with an iterator",
                listed(list(map(str, left))),
                "what can be put back as it was",
                "give the model a new one, or count in a number",
            )
            warnings.warn(text, stacklevel=2)


@contextmanager
def _drawing_as_before() -> Iterator[None]:
    state = _draws()
    try:
        yield
    finally:
        _set_draws(*state)


def _draws() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_draws(host: Tensor, cuda: list[Tensor]) -> None:
    torch.set_rng_state(host)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
