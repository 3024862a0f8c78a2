"""Leaves a model as it was found: its buffers, its Python attributes, its modes and the random numbers to come."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back on leaving what running the model changes in it, and the states of torch's, numpy's and Python's draws.

    Weights are not copied: a forward that changes its own weights is not put back, nor what it changes elsewhere.
    """
    taken = [(module.__dict__, _copy_of(module.__dict__)) for module in model.modules()]
    values = [(tensor, tensor.detach().clone()) for tensor in _own_tensors(model)]
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 (models may use the old one)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    host = torch.get_rng_state()
    try:
        yield
    finally:
        for attributes, kept in taken:
            _put_back(attributes, kept)
        with torch.inference_mode():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.set_rng_state(host)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def _own_tensors(model: nn.Module) -> list[Tensor]:
    """List buffers and other tensors of the modules, weights left out."""
    found = list(model.buffers())
    for module in model.modules():
        found += [each for each in module.__dict__.values() if isinstance(each, Tensor)]
    return [each for each in found if each.device.type != "meta" and not each.requires_grad]


def _copy_of(value: Any) -> Any:
    """Copy containers, and the containers in them; whatever else is in them stays the same object."""
    if isinstance(value, dict):
        return {key: _copy_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_copy_of(each) for each in value]
    return value.copy() if isinstance(value, set | deque) else value


def _put_back(place: Any, kept: Any) -> Any:
    """Fill the very container that was copied, for others may hold it too."""
    if isinstance(place, dict) and isinstance(kept, dict):
        filled = {key: _put_back(place.get(key), each) for key, each in kept.items()}
        place.clear()
        place.update(filled)
        return place
    if isinstance(place, list) and isinstance(kept, list):
        place[:] = [
            _put_back(place[index] if index < len(place) else None, each) for index, each in enumerate(kept)
        ]
        return place
    if isinstance(place, set | deque) and type(place) is type(kept):
        values = list(kept)
        place.clear()
        place.update(values) if isinstance(place, set) else place.extend(values)
        return place
    return kept


_JUMPS = (7, 93, 900, 10**6)


def counts_of(model: nn.Module) -> list[dict[str, float]]:
    """Return the numbers that the modules hold, and the lengths of their lists."""
    return [
        {name: len(each) if isinstance(each, list) else each for name, each in _countable(module)}
        for module in model.modules()
    ]


def _countable(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, each) for name, each in vars(module).items() if type(each) in (int, float, list)]


def set_forward(model: nn.Module, before: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Set what was counted since forward, further each time, and yield the name of the module."""
    for (path, module), counts in zip(model.named_modules(), before, strict=True):
        for name, value in _countable(module):
            now = len(value) if isinstance(value, list) else value
            if counts.get(name) == now:
                continue
            for jump in _JUMPS:
                if isinstance(value, list):
                    value.extend(value[-1:] * min(jump, 1000))
                else:
                    setattr(module, name, value + jump)
                yield path
