"""Operations that only move what is in a tensor to other axes: reshape, permute, repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from outsize.graph import Op
from outsize.tiles import spans
from outsize.tiles.places import BATCH, COLS, ROWS, Axis, Operand, OpNeeds, Place, merged, plain, tracked
from outsize.tiles.spans import Span

_FOLDS = "folds rows or columns into other axes"


def reshape(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Cut the axes, one after the other as they lie in memory, into new ones.

    Rows may be cut into rows of several each, as space-to-depth and window partitions do, and the other way round:
    (rows, 2) on one axis are twice as many rows.
    """
    place = operands[0].known
    needs: list[Span] = [spans.same, spans.same]
    rest: list[str | int] = [part for axis in place.known for part in axis]
    axes: list[Axis] = []
    for size in op.shape:
        axis: list[str | int] = []
        left = size
        while left > 1 and rest:
            part = rest.pop(0)
            length = place.size_of(part)
            if length <= left and left % length == 0:
                axis.append(part)
                left //= length
                continue
            inner, uneven = divmod(length, left)
            if uneven or part == BATCH:
                return OpNeeds(place.lost(), reason=_FOLDS)
            if isinstance(part, str):
                which = (ROWS, COLS).index(part)
                place = place.resized(which, inner, left)
                needs[which] = spans.after(needs[which], spans.sliding(inner, inner, 0, 1))
                axis.append(part)
            else:
                axis.append(left)
            rest.insert(0, inner)
            left = 1
        if left > 1:
            return OpNeeds(place.lost(), reason=_FOLDS)
        axes.append(merged(axis))
    if rest:
        return OpNeeds(place.lost(), reason=_FOLDS)
    return _unfolded(place.on(axes), needs)


def _unfolded(place: Place, needs: list[Span]) -> OpNeeds:
    """Take an axis of rows and so many positions in each for so many times more rows."""
    axes = list(place.known)
    for n, axis in enumerate(axes):
        if len(axis) == 2 and axis[0] in (ROWS, COLS) and isinstance(axis[1], int):
            which = (ROWS, COLS).index(str(axis[0]))
            ratio = Fraction(1, axis[1])
            place = place.resized(which, ratio, place.sizes[which] * axis[1])
            needs[which] = spans.after(needs[which], spans.nearest(ratio))
            axes[n] = axis[:1]
    return OpNeeds(place.on(axes), (needs[0], needs[1]))


def permute(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Follow rows and columns to their new positions."""
    place = operands[0].known
    return OpNeeds(place.on(place.known[dim] for dim in op.ints("dims")))


def repeat(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Lay copies one behind the other, along axes that are neither rows nor columns nor samples."""
    place, num_dims = operands[0].known, len(op.shape)
    axes = [()] * (num_dims - len(place.known)) + list(place.known)
    longer = [tracked(axis) and times != 1 for axis, times in zip(axes, op.ints("repeats"), strict=True)]
    if any(longer):
        return OpNeeds(place.lost(), reason="repeats the picture")
    return OpNeeds(place.on(axes).fitted(op.shape))


def with_parts(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Give a complex number's two parts an axis of their own, behind the others."""
    place = operands[0].known
    return OpNeeds(place.on([*place.known, plain(op.shape[-1])]))


def of_parts(_op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Take the last axis for the two parts of a complex number."""
    place = operands[0].known
    reason = place.over([len(place.known) - 1])
    return OpNeeds(place.lost(), reason=reason) if reason else OpNeeds(place.on(place.known[:-1]))


def without_positions(step: OpNeeds) -> OpNeeds:
    """Forget that values are positions: whatever is computed from them is not."""
    return replace(step, place=replace(step.place, positions=None))
