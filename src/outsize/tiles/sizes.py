"""Compares the graphs of one model for pictures of two sizes: what differs depends on the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from outsize.graph import Op
from outsize.tiles.places import OpNeeds, Place

OTHER_OPERATIONS = "does other operations for pictures of another size, or for another number of them"
OTHER_PLACES = "its pixels stand for another part of the picture where the picture has another size"


def parting_of(ops: Sequence[Op], twins: Sequence[Op]) -> Op | None:
    """Return the first operation that is not the same in both graphs, or is the last that both have."""
    numbers, others = ({op.index: n for n, op in enumerate(each)} for each in (ops, twins))
    for op, twin in zip(ops, twins, strict=False):
        inputs = [numbers.get(index) for index in op.inputs], [others.get(index) for index in twin.inputs]
        if op.kind != twin.kind or inputs[0] != inputs[1] or len(op.shape) != len(twin.shape):
            return op
    if len(ops) != len(twins):
        return ops[min(len(ops), len(twins)) - 1]
    return None


def settled(ops: Sequence[Op], twins: Sequence[Op]) -> list[Op]:
    """Take pooling to a size for pooling by a factor where it is the same whole one for both sizes."""
    shapes, others = ({op.index: op.shape for op in each} for each in (ops, twins))
    done = []
    for op, twin in zip(ops, twins, strict=True):
        kind = {"adaptive_avg_pool": "avg_pool", "adaptive_max_pool": "max_pool"}.get(op.kind)
        factors = [] if kind is None else _factors(shapes[op.inputs[0]], op.shape)
        if factors and kind is not None and factors == _factors(others[twin.inputs[0]], twin.shape):
            ones, kernel = (1,) * len(factors), tuple(factors)
            same = {"kernel": kernel, "stride": kernel, "padding": (0,) * len(factors), "dilation": ones}
            done.append(replace(op, kind=kind, settings=same))
        else:
            done.append(op)
    return done


def _factors(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Return how many times longer each axis behind samples and channels was; nothing where it is no part of it."""
    pairs = list(zip(before, after, strict=True))[2:]
    parted = all(short > 1 and long % short == 0 for long, short in pairs)
    return [long // short for long, short in pairs] if parted else []


def moved_of(
    ops: Sequence[Op],
    twins: Sequence[Op],
    here: tuple[Mapping[int, OpNeeds], tuple[int, int]],
    there: tuple[Mapping[int, OpNeeds], tuple[int, int]],
) -> list[Op]:
    """Return the first operation whose pixels lie otherwise at the other size: a resize to a fixed one, half of all.

    Where an obstacle is known, whatever follows lies as it may.
    """
    for op, twin in zip(ops, twins, strict=True):
        own, other = here[0].get(op.index), there[0].get(twin.index)
        if own is None or other is None:
            continue
        if own.place.axes is None or other.place.axes is None or own.reason or other.reason:
            return []
        if _lie(own.place, here[1]) != _lie(other.place, there[1]):
            return [op]
    return []


def _lie(place: Place, size: tuple[int, int]) -> tuple[object, ...]:
    """Return what is to be the same: axes, scales, and how many pixels there are more than the picture's size says."""
    more = [Fraction(place.sizes[which]) - size[which] / place.scales[which] for which in (0, 1)]
    return place.axes, place.scales, tuple(more)
