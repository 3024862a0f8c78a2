"""Operations that compute each pixel from that pixel alone, or only move axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from outsize.graph import Op
from outsize.tiles.places import UNEVEN, UNLIKE, WHOLE, Operand, Step

_OVER_SPACE = "normalises over rows and columns"


def join(op: Op, operands: Sequence[Operand]) -> Step:
    """Combine operands pixel by pixel; maps must lie alike, and a constant must be one along rows and columns."""
    num_dims = len(op.shape)
    lifted = [each.known.lifted(num_dims - len(each.shape)) for each in operands if each.placed]
    place, reason = lifted[0], None
    if any(
        (each.axes, each.scales, each.sizes) != (place.axes, place.scales, place.sizes) for each in lifted
    ):
        reason = UNLIKE
    elif any(op.shape[axis] != size for axis, size in zip(place.known_axes, place.sizes, strict=True)):
        reason = "repeats the picture"
    elif any(each.varies_over(place, num_dims) for each in operands):
        reason = UNEVEN
    return Step(place, reason=reason)


def weighted(_op: Op, operands: Sequence[Operand]) -> Step:
    """Apply weights to the first operand."""
    computed = any(each.place is not None for each in operands[1:])
    return Step(operands[0].known, reason="takes weights computed from the picture" if computed else None)


def fixed_norm(op: Op, operands: Sequence[Operand]) -> Step:
    """Group, instance and batch norm: harmless only where the statistics are fixed."""
    fixed = op.settings.get("training") is False or op.settings.get("use_input_stats") is False
    step = weighted(op, operands)
    return step if fixed else replace(step, reason=_OVER_SPACE)


def layer_norm(op: Op, operands: Sequence[Operand]) -> Step:
    """Normalise over the last axes."""
    step = weighted(op, operands)
    first = len(op.shape) - len(op.ints("normalized_shape"))
    return replace(step, reason=_OVER_SPACE) if max(step.place.known_axes) >= first else step


def linear(op: Op, operands: Sequence[Operand]) -> Step:
    """Mix the last axis."""
    step = weighted(op, operands)
    return replace(step, reason=WHOLE) if len(op.shape) - 1 in step.place.known_axes else step


def reduce(op: Op, operands: Sequence[Operand]) -> Step:
    """Sum, mean, largest and the like over some axes, all where none is named."""
    source, place = operands[0], operands[0].known
    num_dims = len(source.shape)
    gone = {axis % num_dims for axis in op.ints("dim")} or set(range(num_dims))
    if gone & set(place.known_axes):
        return Step(place.lost(), reason=WHOLE)
    if len(op.shape) == num_dims:
        return Step(place)
    rows, cols = (axis - sum(each < axis for each in gone) for axis in place.known_axes)
    return Step(place.at(rows, cols))


def look_along(op: Op, operands: Sequence[Operand]) -> Step:
    """Softmax, running sums, flips: over axes that must be neither rows nor columns."""
    place, num_dims = operands[0].known, len(operands[0].shape)
    axes = {axis % num_dims for axis in (op.ints("dim") or op.ints("dims") or range(num_dims))}
    return Step(place, reason=WHOLE if axes & set(place.known_axes) else None)


def join_along(op: Op, operands: Sequence[Operand]) -> Step:
    """Concatenate, part, pick or overwrite along one axis, which must be neither rows nor columns."""
    first = next(each for each in operands if each.placed)
    place, num_dims = first.known, len(first.shape)
    new_axis = op.kind == "stack"
    axis = (op.ints("dim") or (0,))[0] % (num_dims + new_axis)
    if axis in place.known_axes and not new_axis:
        return Step(place.lost(), reason="joins or parts the picture along rows or columns")
    reason = None
    if any(
        each.placed and (each.known.axes, each.known.scales) != (place.axes, place.scales)
        for each in operands
    ):
        reason = UNLIKE
    elif any(each.varies_over(place, num_dims) for each in operands):
        reason = UNEVEN
    rows, cols = place.known_axes
    if new_axis:
        rows, cols = rows + (axis <= rows), cols + (axis <= cols)
    elif op.kind in ("select", "unbind"):
        rows, cols = rows - (axis < rows), cols - (axis < cols)
    return Step(place.at(rows, cols), reason=reason)


def pick(op: Op, operands: Sequence[Operand]) -> Step:
    """Index one axis, neither rows nor columns, with a fixed list."""
    place = operands[0].known
    indices = op.settings.get("indices")  # x[:, [2, 1, 0]] has (None, "tensor")
    if isinstance(indices, tuple):
        axes = [axis for axis, index in enumerate(indices) if index is not None]
    else:
        axes = [op.ints("dim")[0] % len(op.shape)]
    fixed = len(operands) == 2 and operands[1].place is None and len(operands[1].shape) == 1
    if fixed and len(axes) == 1 and axes[0] not in place.known_axes:
        return Step(place)
    return Step(place.lost(), reason="picks pixels by position")


def take_item(op: Op, operands: Sequence[Operand]) -> Step:
    """One of several outputs; of pooling and of norms only the first is a picture."""
    source = operands[0]
    reason = None
    if op.settings["item"] != 0 and source.op.kind in ("max_pool", "batch_norm", "group_norm", "layer_norm"):
        reason = "uses positions or statistics of the whole picture"
    return Step(source.known, reason=reason)


def reshape(op: Op, operands: Sequence[Operand]) -> Step:
    """Follow rows and columns into the new shape: equally long, with equally many elements before them."""
    source, place = operands[0], operands[0].known
    found = []
    for axis in place.known_axes:
        size, before = source.shape[axis], prod(source.shape[:axis])
        found += [a for a, new in enumerate(op.shape) if new == size and prod(op.shape[:a]) == before][:1]
    if len(found) == 2:
        return Step(place.at(found[0], found[1]))
    return Step(place.lost(), reason="folds rows or columns into other axes")


def permute(op: Op, operands: Sequence[Operand]) -> Step:
    """Follow rows and columns to their new positions."""
    place, dims = operands[0].known, op.ints("dims")
    rows, cols = place.known_axes
    return Step(place.at(dims.index(rows), dims.index(cols)))
