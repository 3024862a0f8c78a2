"""One plain graph of a model: each operation with its module, its inputs, its shape and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Setting = None | bool | int | float | str | tuple["Setting", ...]

INPUT = "input"  # what the model is given
PARAMETER = "parameter"  # what the model owns: weights, buffers, constant tensors


def kinds(text: str) -> frozenset[str]:
    """Read names of operations that are written one after the other."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; (module, call) names the module's run that it belongs to."""

    index: int
    kind: str
    module: str
    call: int
    inputs: tuple[int, ...]
    shape: tuple[int, ...]  # of the output, of the first one where there are several
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def ints(self, name: str) -> tuple[int, ...]:
        """Return a setting that is a whole number or several; one that was left out is empty."""
        value = self.settings.get(name)
        if value is None:
            return ()
        values = value if isinstance(value, tuple) else (value,)
        assert all(isinstance(each, int) for each in values), (self.kind, name, value)
        return tuple(int(each) for each in values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """Operations in the order they run; an operation's inputs always come before it."""

    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
