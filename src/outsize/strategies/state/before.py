"""Keeps what a step changes, so that one that failed, or that was only to be tried, leaves no trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from outsize.strategies.state.reachable import Reachable


class Before:
    """What a step changes besides gradients, buffers and the state of random numbers, as it was before."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: dict[nn.Module, dict[str, Tensor | None]] = {}  # buffers, which a module may replace
        self._copies: list[Tensor] = []
        self._cpu_state: Tensor | None = None
        self._cuda_states: list[Tensor] = []

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
        self._cpu_state = torch.get_rng_state()
        self._cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def give_back(self) -> None:
        """Put it back, and free what the attempt has left."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for module, held in self._held.items():
            module._buffers.clear()
            module._buffers.update(held)
        _copy(list(self._model.buffers()), self._copies)
        assert self._cpu_state is not None
        torch.set_rng_state(self._cpu_state)
        if self._cuda_states:
            torch.cuda.set_rng_state_all(self._cuda_states)
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    if to:
        with torch.no_grad():
            torch._foreach_copy_(list(to), list(source))


@contextmanager
def followed_on_shapes(model: nn.Module, *others: Any) -> Iterator[None]:
    """Take back what following a model on shapes does to what its forward can reach: variables of files, classes."""
    reachable = Reachable(model, *others, besides=("_parameters", "_buffers"))
    try:
        yield
    finally:
        reachable.put_back()


@contextmanager
def left_as_it_was(model: nn.Module, *others: Any) -> Iterator[None]:
    """Take back what steps inside do to a model and to all that its forward can reach, the example among it."""
    reachable = Reachable(model, *others)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    training = [(module, module.training) for module in model.modules()]
    for parameter, _ in gradients:
        parameter.grad = None
    before = Before(model)
    before.take()
    model.train()
    try:
        yield
    finally:
        before.give_back()
        reachable.put_back()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, was in training:
            module.training = was
