"""Keeps what a block draws at random for its second run, where the generator's state cannot be put back.

    first run    x -> dropout draws m -> x * m        m is kept: a byte for each number, or one for each channel
    second run   x -> dropout is given m -> x * m

Draws that come past torch's dispatcher alone are seen: a kernel of one's own that draws is not (`is_empty` tells it of
a block that draws nothing else).
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
        self._kept: list[tuple[Any, Any]] = []  # operation, and what it gave

    @property
    def is_empty(self) -> bool:
        """Whether nothing was drawn."""
        return not self._kept

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
    def __init__(self, kept: list[tuple[Any, Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if _draws(func, args, kwargs or {}):
            if func._schema.is_mutable and not _writes_first_alone(func):
                raise RuntimeError(f"{func} draws random numbers in a way that cannot be given a second time")
            # what dropout made follows from its mask; of all else a copy, for the block may go on writing to it
            self._kept.append((func, result[1] if func is _DROPOUT else tree_map(_copy, result)))
        return result


class _Giving(TorchDispatchMode):
    def __init__(self, left: list[tuple[Any, Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = left

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _draws(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        expected: Any = self._left[0][0] if self._left else "nothing"
        if expected is not func:
            raise RuntimeError(
                f"a block that is run again draws by {func}, and drew by {expected} the first time"
            )
        drawn = self._left.pop(0)[1]
        if func is _DROPOUT:
            x, share, train = args
            return torch.ops.aten.native_dropout_backward.default(
                x, drawn, dropout_scale(share, train)
            ), drawn
        if func._schema.is_mutable:
            return args[0].copy_(drawn)
        return tree_map(_copy, drawn)  # one that may be written to


def dropout_scale(share: float, train: bool | None) -> float:
    """Return what dropout multiplies the numbers by that it leaves."""
    if train is False:
        return 1.0
    return 0.0 if share == 1 else 1 / (1 - share)


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws; attention says that it may, and does only where it drops something."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [each.name for each in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return "dropout_p" not in names or bool(given.get("dropout_p", 0.0))


def _writes_first_alone(func: Any) -> bool:
    written = [
        place
        for place, each in enumerate(func._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return written == [0]


def _copy(each: Any) -> Any:
    return each.clone() if isinstance(each, Tensor) else each
