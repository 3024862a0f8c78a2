"""Sets what modules count forward, as if a model had run more often: some change their ways after a hundred runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

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
