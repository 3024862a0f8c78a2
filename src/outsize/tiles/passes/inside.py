"""Rules of operations that compute a pixel from that pixel, move axes, or add up over the whole picture."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from outsize.graph import Op
from outsize.tiles.passes.parts import WAITS, Map, OpPart, PassOperand, Role, map_at


def join(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Compute each pixel from those of the same place."""
    num_dims = len(op.shape)
    maps = [_lifted(each, num_dims) for each in operands if each.map is not None]
    axes = maps[0].axes
    out = map_at(op.shape, axes)
    fits = all(
        each.axes == axes and all(n in (1, m) for n, m in zip(each.sizes, out.sizes, strict=True))
        for each in maps
    )
    return OpPart(Role.LOCAL, out) if fits and _spread_alike(operands, out, num_dims) else WAITS


def weighted(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Compute each pixel of the first operand with weights that are there as a whole."""
    first = operands[0].map
    if (
        first is None
        or any(each.map is not None for each in operands[1:])
        or len(op.shape) <= max(first.axes)
    ):
        return WAITS
    out = map_at(op.shape, first.axes)
    return OpPart(Role.LOCAL, out) if out.sizes == first.sizes else WAITS


def last_axis(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Mix the last axes by weights: linear layers, matrix products, layer norm."""
    first = operands[0].map
    num_last = len(op.ints("normalized_shape")) or 1
    if first is None or max(first.axes) >= len(operands[0].shape) - num_last:
        return WAITS
    if op.kind == "matmul" and len(operands[1].shape) > 2:
        return WAITS
    return weighted(op, operands)


def along(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Look along axes that are neither rows nor columns: softmax, running sums, flips."""
    first = operands[0].map
    num_dims = len(operands[0].shape)
    axes = {axis % num_dims for axis in (op.ints("dim") or op.ints("dims") or range(num_dims))}
    return weighted(op, operands) if first is not None and not axes & set(first.axes) else WAITS


def reduce(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Sum, mean, largest and the like: over other axes part by part, over rows and columns as a pool."""
    first = operands[0].map
    if first is None or any(each.map is not None for each in operands[1:]):
        return WAITS
    num_dims = len(operands[0].shape)
    gone = {axis % num_dims for axis in op.ints("dim")} or set(range(num_dims))
    if set(first.axes) <= gone:
        return OpPart(Role.POOL) if _adds_up(op) else WAITS
    if set(first.axes) & gone:
        return WAITS
    if len(op.shape) == num_dims:
        return OpPart(Role.LOCAL, first)
    rows, cols = (axis - sum(each < axis for each in gone) for axis in first.axes)
    return OpPart(Role.LOCAL, first.at(rows, cols))


def _adds_up(op: Op) -> bool:
    if op.kind == "linalg_vector_norm":
        return op.settings.get("ord", 2) in (2, 2.0) and op.settings.get("dtype") is None
    return op.kind in ("mean", "sum", "amax", "amin", "max", "min") and op.settings.get("dtype") is None


def pool_to_bins(_op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Adaptive pooling: each bin is a sum, or the largest, over known rows and columns of the whole."""
    first = operands[0]
    num_dims = len(first.shape)
    return OpPart(Role.POOL if first.map and first.map.axes == (num_dims - 2, num_dims - 1) else Role.WHOLE)


def join_along(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Concatenate, part or pick along one axis that is neither rows nor columns."""
    first = next(each for each in operands if each.map is not None)
    assert first.map is not None
    num_dims, new_axis = len(first.shape), op.kind == "stack"
    axis = (op.ints("dim") or (0,))[0] % (num_dims + new_axis)
    rows, cols = first.map.axes
    if axis in (rows, cols) and not new_axis:
        return WAITS
    if any(each.map != first.map for each in operands if each.map is not None):
        return WAITS
    if not _spread_alike(operands, first.map, num_dims):
        return WAITS
    if new_axis:
        rows, cols = rows + (axis <= rows), cols + (axis <= cols)
    elif op.kind in ("select", "unbind"):
        rows, cols = rows - (axis < rows), cols - (axis < cols)
    return OpPart(Role.LOCAL, first.map.at(rows, cols))


def pick(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Index one axis, neither rows nor columns, with a list that is there as a whole."""
    first = operands[0].map
    indices = op.settings.get("indices")
    if isinstance(indices, tuple):
        axes = [axis for axis, index in enumerate(indices) if index is not None]
    else:
        axes = [op.ints("dim")[0] % len(op.shape)]
    fixed = len(operands) == 2 and operands[1].map is None and len(operands[1].shape) == 1
    if first is None or not fixed or len(axes) != 1 or axes[0] in first.axes:
        return WAITS
    return OpPart(Role.LOCAL, first)


def take_item(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """One of several outputs; of pooling and of norms only the first is a map."""
    source = operands[0]
    if op.settings["item"] != 0 and source.op.kind in ("max_pool", "batch_norm", "layer_norm", "group_norm"):
        return WAITS
    return OpPart(Role.LOCAL, source.map)


def reshape(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Follow rows and columns into the new shape: equally long, with equally many elements before them."""
    source, first = operands[0], operands[0].map
    assert first is not None
    found = []
    for axis in first.axes:
        size, before = source.shape[axis], prod(source.shape[:axis])
        found += [a for a, new in enumerate(op.shape) if new == size and prod(op.shape[:a]) == before][:1]
    if len(found) != 2 or found[0] == found[1]:
        return WAITS
    return OpPart(Role.LOCAL, first.at(found[0], found[1]))


def permute(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Follow rows and columns to their new positions."""
    first = operands[0].map
    assert first is not None
    dims = op.ints("dims")
    return OpPart(Role.LOCAL, first.at(*(dims.index(axis) for axis in first.axes)))


def group_norm(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Normalise by statistics of all rows and columns, of groups of channels."""
    first, num_dims = operands[0].map, len(operands[0].shape)
    if op.kind == "instance_norm" and op.settings.get("use_input_stats") is False:
        return weighted(op, operands)
    if first is None or first.axes != (num_dims - 2, num_dims - 1) or num_dims != 4:
        return WAITS
    if op.kind == "instance_norm" and op.settings.get("running_mean") is not None:
        return WAITS  # it also changes what the layer remembers
    return OpPart(Role.NORM, first) if all(each.map is None for each in operands[1:]) else WAITS


def batch_norm(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Batch norm with fixed statistics."""
    return weighted(op, operands) if op.settings.get("training") is False else WAITS


def _lifted(operand: PassOperand, num_dims: int) -> Map:
    assert operand.map is not None
    by = num_dims - len(operand.shape)
    rows, cols = operand.map.axes
    return operand.map.at(rows + by, cols + by)


def _spread_alike(operands: Sequence[PassOperand], out: Map, num_dims: int) -> bool:
    """Whether what is there as a whole has one value along rows and columns, or as many as the map."""
    for each in operands:
        if each.map is not None:
            continue
        for axis, size in zip(out.axes, out.sizes, strict=True):
            own = axis - num_dims + len(each.shape)
            if own >= 0 and each.shape[own] not in (1, size):
                return False
    return True
