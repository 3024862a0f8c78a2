"""Sets what a model counts forward, as if it had run more often: some change their ways after a hundred runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from torch import nn

from outsize.measure.state.kept import Boxed, Cell, Items, StatePlace, Variables
from outsize.measure.state.reachable import Reachable

# Before and at round numbers, as of what is done every fiftieth run: 720,720 is a multiple of all up to 16.
_COUNTS = tuple(each for round_one in (100, 1000, 720_720, 10**6) for each in (round_one - 1, round_one))
_JUMPS = (7.0, 93.0, 900.0, 1e6)
_LENGTHS = (100, 900)


def counts_of(model: nn.Module) -> Reachable:
    """Return what a model can count in: its numbers, texts, lists and iterators, wherever they are held."""
    return Reachable(model, besides=("_parameters", "_buffers"))


def set_forward(before: Reachable) -> Iterator[str]:
    """Set what was counted since forward, further each time, and yield the name of the module.

    An iterator that went on has gone further by that.
    """
    for where, place, part in list(before.changed()):
        for _ in _further(place, part):
            yield where.module


def _further(place: StatePlace, part: Any) -> Iterator[None]:
    if isinstance(place, Items):
        for num in _LENGTHS:
            place.grow(num)
            yield
    elif isinstance(place, Variables | Cell | Boxed):
        for value in _values(place.now(part)):
            with suppress(OverflowError):
                place.put(part, value)
                yield


def _values(now: Any) -> list[Any]:
    if isinstance(now, bool):
        return []
    if isinstance(now, int | np.integer):
        return [type(now)(each) for each in _COUNTS if each > now]
    if isinstance(now, float):
        return [now + each for each in _JUMPS]
    return [now + now[-1:] * each for each in _LENGTHS] if isinstance(now, str) else []
