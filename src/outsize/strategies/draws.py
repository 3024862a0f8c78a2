"""Keeps what a block draws at random for its second run, where the generator's state cannot be put back.

first run    x -> dropout draws m -> x * m        m is kept: a byte for each number, or one for each channel
second run   x -> dropout is given m -> x * m
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_DROPOUT = torch.ops.aten.native_dropout.default


class Draws:
    """What the random operations of one run gave, in order."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what is drawn inside."""
        with _Keeping(self._kept):
            yield

    @contextmanager
    def given(self) -> Iterator[None]:
        """Give what was kept to the same operations, as often as this is asked for."""
        with _Giving(list(self._kept)):
            yield


class _Keeping(TorchDispatchMode):
    def __init__(self, kept: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            # what dropout made follows from its mask; of all else a copy, for the block may go on writing to it
            self._kept.append(result[1] if func is _DROPOUT else tree_map(_copy, result))
        return result


class _Giving(TorchDispatchMode):
    def __init__(self, left: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = left

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        drawn = self._left.pop(0)
        if func is _DROPOUT:
            scale = 1.0 / (1.0 - args[1]) if args[1] < 1 else 0.0
            return args[0] * drawn * scale, drawn  # as a GPU's kernel rounds: once
        if func._schema.is_mutable:
            return args[0].copy_(drawn)
        return tree_map(_copy, drawn)  # one that may be written to


def _copy(each: Any) -> Any:
    return each.clone() if isinstance(each, Tensor) else each
