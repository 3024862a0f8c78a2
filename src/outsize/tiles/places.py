"""Where the picture's rows, columns and samples lie inside a tensor, and what one operation does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Literal

from outsize.graph import Op
from outsize.tiles import spans
from outsize.tiles.spans import Span

WHOLE = "looks at the whole picture"
SAMPLES = "mixes the samples of a batch: tiles would see one another"
UNEVEN = "joins the picture with a constant that differs from place to place"
UNLIKE = "joins maps that lie differently"
COMPUTED = "takes weights or positions computed from the picture"

ROWS: Literal["rows"] = "rows"
COLS: Literal["cols"] = "cols"
BATCH: Literal["batch"] = "batch"
# One axis of a tensor, slowest first: what it runs over, and how many positions of anything else. A plain axis has at
# most one number, (rows, 8) is rows of 8 each, as a window partition makes them; () has the size 1.
Axis = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows and columns lie in a tensor, how many input pixels each of its pixels stands for, and its size."""

    axes: tuple[Axis, ...] | None  # None: rows and columns can no longer be told apart
    scales: tuple[Fraction, Fraction]
    sizes: tuple[int, int]
    batch: int
    positions: tuple[int, ...] | None = (
        None  # of the largest values in the windows of a pooling, which are so large
    )

    @property
    def known(self) -> tuple[Axis, ...]:
        """The axes of a tensor that still has them."""
        assert self.axes is not None
        return self.axes

    def size_of(self, part: str | int) -> int:
        """Return how many positions a part of an axis has."""
        if isinstance(part, int):
            return part
        return {ROWS: self.sizes[0], COLS: self.sizes[1], BATCH: self.batch}[part]

    def lost(self) -> Place:
        """Return the picture with its axes mixed up; size and scale are remembered."""
        return replace(self, axes=None)

    def on(self, axes: Iterable[Axis]) -> Place:
        """Return the same picture on other axes."""
        return replace(self, axes=tuple(merged(axis) for axis in axes))

    def fitted(self, shape: Sequence[int]) -> Place:
        """Return the place in a tensor of that shape, whose other axes may have become longer or shorter."""
        axes = zip(self.known, shape, strict=True)
        return replace(self, axes=tuple(axis if tracked(axis) else plain(size) for axis, size in axes))

    def resized(self, which: int, factor: Fraction | int, size: int) -> Place:
        """Return the place with so many times larger pixels along rows (0) or columns (1), and so many of them."""
        scales, sizes = list(self.scales), list(self.sizes)
        scales[which], sizes[which] = scales[which] * factor, size
        return replace(self, scales=(scales[0], scales[1]), sizes=(sizes[0], sizes[1]))

    def over(self, axes: Iterable[int]) -> str | None:
        """Say what an operation along these axes, which uses all of each, would mix up."""
        parts = {part for axis in axes for part in self.known[axis]}
        if ROWS in parts or COLS in parts:
            return WHOLE
        return SAMPLES if BATCH in parts else None


def tracked(axis: Axis) -> bool:
    """Whether an axis runs over rows, columns or samples."""
    return any(isinstance(part, str) for part in axis)


def plain(size: int) -> Axis:
    """Return an axis of so many positions of no importance."""
    return () if size == 1 else (size,)


def merged(parts: Iterable[str | int]) -> Axis:
    """Return an axis with neighbouring numbers taken for one."""
    done: list[str | int] = []
    for part in parts:
        last = done[-1] if done else None
        if part == 1:
            continue
        if isinstance(part, int) and isinstance(last, int):
            done[-1] = last * part
        else:
            done.append(part)
    return tuple(done)


@dataclass(frozen=True, slots=True)
class OpNeeds:
    """The place of an operation's output, its needs along rows and columns, and what speaks against tiling it."""

    place: Place
    needs: tuple[Span, Span] = (spans.same, spans.same)
    reason: str | None = None
    crops: bool = False  # its output ends nearer than the window that is read


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that does not depend on the picture: the axes along which it may vary, and what speaks against it."""

    varying: frozenset[int]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """One input of an operation; its place is None where it does not depend on the picture."""

    op: Op
    place: Place | None
    constant: Constant = Constant(frozenset())

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


Rule = Callable[[Op, Sequence[Operand]], OpNeeds]


def broadcast(shape: Sequence[int], operands: Sequence[Operand]) -> tuple[Place, str | None]:
    """Line tensors up by their last axes: maps must lie alike, and a constant be one along rows, columns and samples.

    A tensor that depends on the picture and has lost its axes was refused before, and is passed over.
    """
    placed = [each for each in operands if each.placed]
    first = placed[0].known
    reason = None
    if any(
        (each.known.scales, each.known.sizes, each.known.batch) != (first.scales, first.sizes, first.batch)
        for each in placed
    ):
        reason = UNLIKE
    axes: list[Axis] = []
    for axis in range(-len(shape), 0):
        held = {each.known.known[axis] for each in placed if len(each.shape) >= -axis} - {()}
        followed = {each for each in held if tracked(each)}
        if len(followed) > 1 or (followed and len(held) > 1):
            reason = reason or UNLIKE
        axes.append(next(iter(followed)) if followed else plain(shape[axis]))
    place = first.on(axes)
    for axis in range(-1, -len(shape) - 1, -1):  # rows and columns first: they say more
        if tracked(axes[axis]):
            if prod(place.size_of(part) for part in axes[axis]) != shape[axis]:
                reason = reason or "repeats the picture"
            if any(_varies(each, axis) for each in operands):
                reason = reason or (UNEVEN if set(axes[axis]) - {BATCH} else SAMPLES)
    parts = [part for axis in axes for part in axis if isinstance(part, str)]
    if len(set(parts)) < len(parts):
        return place.lost(), reason or UNLIKE
    return place, reason


def _varies(each: Operand, axis: int) -> bool:
    return each.place is None and axis + len(each.shape) in each.constant.varying
