"""Where the picture's rows and columns lie inside a tensor, and what one operation does to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from outsize.graph import Op
from outsize.tiles import spans
from outsize.tiles.spans import Span

WHOLE = "looks at the whole picture"
UNEVEN = "joins the picture with a constant that differs from place to place"
UNLIKE = "joins maps that lie differently"


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows and columns lie in a tensor, how many input pixels each of its pixels stands for, and its size."""

    axes: tuple[int, int] | None  # None: rows and columns can no longer be told apart
    scales: tuple[Fraction, Fraction]
    sizes: tuple[int, int]

    @property
    def known_axes(self) -> tuple[int, int]:
        """The axes of a tensor that still has them."""
        assert self.axes is not None
        return self.axes

    def at(self, rows: int, cols: int) -> Place:
        """Return the same picture on other axes."""
        return replace(self, axes=(rows, cols))

    def lost(self) -> Place:
        """Return the picture with its axes mixed up; size and scale are remembered."""
        return replace(self, axes=None)

    def lifted(self, by: int) -> Place:
        """Return the place seen from a tensor with `by` more axes in front, as broadcasting lines them up."""
        rows, cols = self.known_axes
        return self.at(rows + by, cols + by)

    def scaled(self, rows: Fraction | int, cols: Fraction | int, shape: Sequence[int]) -> Place:
        """Return the place in a tensor of that shape whose pixels stand for so many times more."""
        row_axis, col_axis = self.known_axes
        scales = (self.scales[0] * rows, self.scales[1] * cols)
        return Place(self.axes, scales, (shape[row_axis], shape[col_axis]))


@dataclass(frozen=True, slots=True)
class Step:
    """The place of an operation's output, its needs along rows and columns, and what speaks against tiling it."""

    place: Place
    needs: tuple[Span, Span] = (spans.same, spans.same)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """One input of an operation; its place is None where it does not depend on the picture."""

    op: Op
    place: Place | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.op.shape

    @property
    def placed(self) -> bool:
        """Whether rows and columns are known in it."""
        return self.place is not None and self.place.axes is not None

    @property
    def known(self) -> Place:
        """The place of an operand that has one."""
        assert self.place is not None
        return self.place

    def varies_over(self, place: Place, num_dims: int) -> bool:
        """Whether it is a constant with more than one value along rows or columns of a tensor it is joined with."""
        if self.place is not None:
            return False
        axes = [axis - num_dims + len(self.shape) for axis in place.known_axes]
        return any(axis >= 0 and self.shape[axis] > 1 for axis in axes)


Rule = Callable[[Op, Sequence[Operand]], Step]
