"""Products of matrices: sums over an axis, which must be neither rows nor columns nor samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outsize.graph import Op
from outsize.tiles.places import COMPUTED, WHOLE, Operand, OpNeeds, Place, broadcast, plain, tracked


def linear(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Mix the last axis."""
    source = operands[0]
    computed = any(each.place is not None for each in operands[1:])
    place = source.known
    reason = place.over([len(place.known) - 1])
    axes = [*place.known[:-1], plain(op.shape[-1])]
    return OpNeeds(place.on(axes), reason=COMPUTED if computed else reason)


def product(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Multiply matrices, which may lie in stacks: (.., n, k) by (.., k, m); a summand may come first."""
    more, (left, right) = operands[:-2], operands[-2:]
    if len(left.shape) < 2 or len(right.shape) < 2:
        return OpNeeds(_any_place(operands), reason=WHOLE)
    for each, axis in ((left, -1), (right, -2)):
        if each.placed and (reason := each.known.over([axis])) is not None:
            return OpNeeds(_any_place(operands).lost(), reason=reason)
    # as if both had all axes of the answer, with 1 where it has the other's
    num_dims = len(op.shape)
    tall = _spread(left, num_dims, 0)
    wide = _spread(right, num_dims, 1)
    place, reason = broadcast(op.shape, [*more, tall, wide])
    if place.axes is None and (left.placed and right.placed):
        return OpNeeds(place, reason=WHOLE)
    return OpNeeds(place, reason=reason)


def distances(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Measure how far rows are from rows, (.., n, k) from (.., m, k): as a product with the second turned."""
    return product(op, [operands[0], _turned(operands[1])])


def _turned(each: Operand) -> Operand:
    num_dims = len(each.shape)
    order = [*range(num_dims - 2), num_dims - 1, num_dims - 2]
    place = each.known.on([each.known.known[n] for n in order]) if each.placed else each.place
    varying = frozenset(order[n] for n in each.constant.varying)
    turned = replace(each.op, shape=tuple(each.shape[n] for n in order))
    return Operand(turned, place, replace(each.constant, varying=varying))


def _spread(each: Operand, num_dims: int, which: int) -> Operand:
    """Return a matrix with its own axis kept and the one that is summed over gone: (.., n, 1) or (.., 1, m)."""
    shape = list(each.shape)
    gone = len(shape) - 1 if which == 0 else len(shape) - 2
    shape[gone] = 1
    varying = each.constant.varying - {gone}
    place = each.place
    if each.placed:
        place = each.known.on(() if n == gone else axis for n, axis in enumerate(each.known.known))
    assert len(shape) <= num_dims
    return Operand(replace(each.op, shape=tuple(shape)), place, replace(each.constant, varying=varying))


def attention(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Weigh values by how queries match keys: sums over keys, which must be no part of the picture."""
    query, keys = operands[0], operands[1:3]
    if not query.placed or any(each.place is not None and not each.placed for each in keys):
        return OpNeeds(_any_place(operands), reason=WHOLE)
    place = query.known
    reason = place.over([-1])
    for each in keys:
        if each.placed:
            reason = reason or each.known.over([-1, -2])
    if any(each.placed for each in keys):
        reason = reason or place.over([-2])
    _, unlike = broadcast([*op.shape[:-2], 1, 1], [_leading(each) for each in operands[:3]])
    if any(each.place is not None for each in operands[3:]):
        reason = reason or COMPUTED
    for each in operands[3:]:
        axes = [n - len(each.shape) for n in each.constant.varying]
        if any(tracked(place.known[axis]) for axis in axes if axis != -1):
            reason = reason or WHOLE
    return OpNeeds(place.fitted(op.shape), reason=reason or unlike)


def _leading(each: Operand) -> Operand:
    """Return an operand of which only the axes in front of its matrices are left."""
    varying = frozenset(n for n in each.constant.varying if n < len(each.shape) - 2)
    place = each.known.on([*each.known.known[:-2], (), ()]) if each.placed else each.place
    one = replace(each.op, shape=(*each.shape[:-2], 1, 1))
    return Operand(one, place, replace(each.constant, varying=varying))


def _any_place(operands: Sequence[Operand]) -> Place:
    return next(each.known for each in operands if each.place is not None)
