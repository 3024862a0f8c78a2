"""A map of the whole picture, how an operation is run on parts of it, and what it needs for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from outsize.graph import Op
from outsize.tiles import spans
from outsize.tiles.spans import Span


class Role(Enum):
    """How an operation is run."""

    LOCAL = "part by part, each from parts of its inputs"
    POOL = "one number or a few for the whole picture, to which every part adds its own"
    NORM = "statistics of the whole picture first, then part by part"
    PLAIN = "once: it depends on no map"
    WHOLE = "once, when all of its inputs are there"


@dataclass(frozen=True, slots=True)
class Map:
    """Where rows and columns lie in a tensor, and how many there are in the whole picture."""

    axes: tuple[int, int]
    sizes: tuple[int, int]

    def at(self, rows: int, cols: int) -> Map:
        """Return the same rows and columns on other axes."""
        return Map((rows, cols), self.sizes)


@dataclass(frozen=True, slots=True)
class PassOperand:
    """One input of an operation; without a map it is there as a whole."""

    op: Op
    map: Map | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the whole picture."""
        return self.op.shape


@dataclass(frozen=True, slots=True)
class OpPart:
    """How an operation is run, the map it makes, and what rows and columns it needs of its inputs' maps."""

    role: Role
    map: Map | None = None
    needs: tuple[Span, Span] = (spans.same, spans.same)


def map_at(shape: Sequence[int], axes: tuple[int, int]) -> Map:
    """Return the map of a tensor of that shape."""
    return Map(axes, (shape[axes[0]], shape[axes[1]]))


Rule = Callable[[Op, Sequence[PassOperand]], OpPart]

WAITS = OpPart(Role.WHOLE)  # until all of its inputs are there
