"""Operations that compute each pixel of each sample from that pixel alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outsize.graph import Op, kinds
from outsize.tiles.places import (
    BATCH,
    COMPUTED,
    SAMPLES,
    UNLIKE,
    WHOLE,
    Axis,
    Operand,
    OpNeeds,
    broadcast,
    plain,
    tracked,
)

_OVER_SPACE = "normalises over rows and columns"


def join(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Combine operands pixel by pixel."""
    place, reason = broadcast(op.shape, operands)
    return OpNeeds(place, reason=reason)


def weighted(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Apply weights, one for each channel, to the first operand."""
    source = operands[0]
    computed = any(each.place is not None for each in operands[1:])
    channels = source.known.over([1] if len(source.shape) > 1 and len(operands) > 1 else [])
    return OpNeeds(source.known.fitted(op.shape), reason=COMPUTED if computed else channels)


def fixed_norm(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Batch, group and instance norm: harmless where the statistics are fixed, or of one pixel alone."""
    step = weighted(op, operands)
    fixed = op.settings.get("training") is False or op.settings.get("use_input_stats") is False
    if fixed:
        return step
    first = {"group_norm": 1, "instance_norm": 2}.get(op.kind, 0)
    axes = step.place.known[first:] if op.kind != "batch_norm" else step.place.known
    if any(tracked(axis) for axis in axes):
        return replace(step, reason=_OVER_SPACE)
    return step


def layer_norm(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Normalise over the last axes."""
    place = operands[0].known
    computed = any(each.place is not None for each in operands[1:])
    last = range(len(op.shape) - len(op.ints("normalized_shape")), len(op.shape))
    over = place.over(last)
    reason = _OVER_SPACE if over == WHOLE else over
    return OpNeeds(place, reason=COMPUTED if computed else reason)


def reduce(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Sum, mean, largest and the like over some axes, all where none is named."""
    place = operands[0].known
    num_dims = len(operands[0].shape)
    gone = {axis % num_dims for axis in op.ints("dim")} or set(range(num_dims))
    reason = place.over(gone)
    if reason == WHOLE:
        return OpNeeds(place.lost(), reason=WHOLE)
    kept = len(op.shape) == num_dims
    axes: list[Axis] = [
        () if n in gone else axis for n, axis in enumerate(place.known) if kept or n not in gone
    ]
    return OpNeeds(place.on(axes), reason=reason)


def look_along(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Softmax, running sums, sorting, flips: over axes that must be neither rows nor columns nor samples."""
    place, num_dims = operands[0].known, len(operands[0].shape)
    usual = (-1,) if op.kind in LAST_AXIS else (-2, -1) if op.kind.endswith("fft2") else range(num_dims)
    axes = [axis % num_dims for axis in (op.ints("dim") or op.ints("dims") or usual)]
    reason = place.over(axes)
    if len(op.shape) != num_dims:
        axes = sorted(axes, reverse=True)
        place = place.on(axis for n, axis in enumerate(place.known) if n not in axes)
    return OpNeeds(place.fitted(op.shape), reason=reason)


LAST_AXIS = kinds("sort argsort topk glu kthvalue mode median")


def choose_along(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Gather or scatter along one axis, by positions that lie as the picture does."""
    placed = [each for each in operands if each.placed]
    place = placed[0].known
    axis = op.ints("dim")[0] % len(op.shape)
    reason = place.over([axis])
    for each in placed[1:]:
        others = each.known
        alike = (others.scales, others.sizes, others.batch) == (place.scales, place.sizes, place.batch)
        for n, (own, other) in enumerate(zip(place.known, others.known, strict=True)):
            if n != axis and own != other:
                alike = False
        reason = reason or (None if alike else UNLIKE)
    for each in operands:
        if each.place is None and any(tracked(place.known[n]) for n in each.constant.varying):
            reason = reason or "picks pixels by position"
        if each.place is None and len(each.shape) == len(op.shape):
            short = any(tracked(a) and each.shape[n] != op.shape[n] for n, a in enumerate(place.known))
            reason = reason or ("picks pixels by position" if short else None)
    return OpNeeds(place.fitted(op.shape), reason=reason)


def join_along(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Concatenate, part, pick or overwrite along one axis, which must be neither rows nor columns nor samples."""
    first = next(each for each in operands if each.placed)
    place, num_dims = first.known, len(first.shape)
    new_axis, gone_axis = op.kind == "stack", op.kind in ("select", "unbind")
    axis = (op.ints("dim") or (0,))[0] % (num_dims + new_axis)
    if not new_axis and (reason := place.over([axis])) is not None:
        place = (
            place.lost()
            if reason == WHOLE
            else place.on(_without(place.known, axis) if gone_axis else place.known)
        )
        what = "joins or parts the picture along rows or columns" if reason == WHOLE else SAMPLES
        return OpNeeds(place, reason=what)
    # what is joined may be longer or shorter along that axis: an axis of its own for each
    lined = [
        _lined_up(each, axis, num_dims, new_axis=new_axis)
        for each in operands
        if each.op.shape or each.placed
    ]
    shape = list(first.shape)
    if not new_axis:
        shape[axis] = 1
    place, reason = broadcast(shape, lined)
    if place.axes is None:
        return OpNeeds(place, reason=reason)
    if new_axis:
        axes = [*place.known[:axis], plain(op.shape[axis]), *place.known[axis:]]
    elif gone_axis:
        axes = _without(place.known, axis)
    else:
        axes = list(place.known)
    return OpNeeds(place.on(axes).fitted(op.shape), reason=reason)


def _lined_up(each: Operand, axis: int, num_dims: int, *, new_axis: bool) -> Operand:
    """Return an operand whose joined axis is of no account; one without it (`select_scatter`) is given it."""
    shape = list(each.shape)
    if len(shape) == num_dims - 1 and not new_axis:
        varying = frozenset(n + (n >= axis) for n in each.constant.varying)
        axes = None if not each.placed else [*each.known.known[:axis], (), *each.known.known[axis:]]
        shape.insert(axis, 1)
    elif new_axis or len(shape) != num_dims:
        return each
    else:
        varying = each.constant.varying - {axis}
        axes = (
            None if not each.placed else [() if n == axis else own for n, own in enumerate(each.known.known)]
        )
        shape[axis] = 1
    place = each.place if axes is None else each.known.on(axes)
    constant = replace(each.constant, varying=varying)
    if 0 in each.shape:  # nothing at all varies nowhere
        constant = replace(constant, varying=frozenset())
    return Operand(replace(each.op, shape=tuple(shape)), place, constant)


def _without(axes: Sequence[Axis], axis: int) -> list[Axis]:
    return [own for n, own in enumerate(axes) if n != axis]


def pick(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Index one axis, neither rows nor columns nor samples, with a fixed list."""
    place = operands[0].known
    indices = op.settings.get("indices")  # x[:, [2, 1, 0]] has (None, "tensor")
    if isinstance(indices, tuple):
        axes = [axis for axis, index in enumerate(indices) if index is not None]
    else:
        axes = [op.ints("dim")[0] % len(op.shape)]
    fixed = len(operands) == 2 and operands[1].place is None and len(operands[1].shape) == 1
    if fixed and len(axes) == 1 and not tracked(place.known[axes[0]]):
        return OpNeeds(place.fitted(op.shape))
    if len(axes) == 1 and place.known[axes[0]] == (BATCH,):
        return OpNeeds(place, reason=SAMPLES)
    return OpNeeds(place.lost(), reason="picks pixels by position")


def look_up(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Replace each class number by a row of a table, or by zeros and a one."""
    source = operands[-1]
    place = source.known
    computed = any(each.place is not None for each in operands[:-1])
    return OpNeeds(place.on([*place.known, plain(op.shape[-1])]), reason=COMPUTED if computed else None)


def sort_into(_: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Replace each number by which of fixed ranges it lies in."""
    computed = any(each.place is not None for each in operands[1:])
    return OpNeeds(operands[0].known, reason=COMPUTED if computed else None)


def take_item(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """One of several outputs; of norms only the first is a picture, of pooling the second where the largest was."""
    source, item = operands[0], op.settings["item"]
    place = source.known.fitted(op.shape) if len(source.known.known) == len(op.shape) else source.known
    if item == 0:
        return OpNeeds(place)
    if source.op.kind == "max_pool":
        names = ("kernel", "stride", "padding", "dilation")
        kernel, stride, padding, dilation = (source.op.ints(name) for name in names)
        apart = kernel == stride and not any(padding) and set(dilation) == {1}
        return OpNeeds(replace(place, positions=kernel if apart else ()))
    statistics = source.op.kind in ("batch_norm", "group_norm", "layer_norm")
    return OpNeeds(place, reason="uses statistics of the whole picture" if statistics else None)
