"""Tensors that do not depend on the picture: along which axes they vary, and what they depend on instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from outsize.graph import PARAMETER, Op, kinds
from outsize.tiles.places import Constant

UNIFORM = kinds(
    "full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full scalar_tensor fill zero"
)
_UNFILLED = kinds("empty empty_like new_empty empty_strided new_empty_strided empty_permuted")
_MOVES = kinds("reshape permute expand expand_as broadcast_to slice select unbind split getitem clone")

SIZED = "computes with a constant that depends on the size of the picture or batch"
DRAWN = "draws random numbers"
REMEMBERED = "computes with what an earlier run left behind"


def constant(op: Op, sources: Sequence[tuple[Op, Constant]], *, pointwise: bool, sized: bool) -> Constant:
    """Follow an operation on constants; `sized`: its settings or shapes differ with the size of the picture.

    One value everywhere stays that through what is done to each element alone, or moves elements. A running sum of
    ones, their average under a padded window or a triangle of them does not.
    """
    if not prod(op.shape):
        return Constant(frozenset())  # nothing at all, as the channels of a stage that has none
    reason = next((each.reason for _, each in sources if each.reason), None)
    if op.settings.get("draws") or op.kind in _UNFILLED:
        return Constant(_all_axes(op), DRAWN)
    if op.kind == PARAMETER:
        reason = REMEMBERED if op.settings.get("changes") else SIZED if sized else None
        return Constant(_all_axes(op), reason)
    if op.kind in UNIFORM:
        return Constant(frozenset(), SIZED if sized else None)
    uniform = not any(each.varying for _, each in sources)
    if op.kind in _MOVES and sources:
        if uniform:
            return Constant(frozenset(), reason)
        return Constant(_moved(op, *sources[0]), reason or (SIZED if sized else None))
    if pointwise and sources:
        varying = {
            axis + len(op.shape) - len(source.shape) for source, each in sources for axis in each.varying
        }
        return Constant(frozenset(varying), reason or (SIZED if sized else None))
    return Constant(_all_axes(op), reason or (SIZED if sized else None))


def _all_axes(op: Op) -> frozenset[int]:
    return frozenset(axis for axis, size in enumerate(op.shape) if size > 1)


def _moved(op: Op, source: Op, held: Constant) -> frozenset[int]:
    """Follow the axes along which a constant varies to where they are moved."""
    if op.kind == "permute":
        return frozenset(axis for axis, dim in enumerate(op.ints("dims")) if dim in held.varying)
    if op.kind in ("expand", "expand_as", "broadcast_to", "clone"):
        return frozenset(axis + len(op.shape) - len(source.shape) for axis in held.varying)
    if op.kind in ("slice", "split") and len(op.shape) == len(source.shape):
        return held.varying & _all_axes(op)
    if op.kind == "reshape":
        ends = {prod(source.shape[: axis + 1]): source.shape[axis] for axis in held.varying}
        kept = {axis for axis in _all_axes(op) if ends.get(prod(op.shape[: axis + 1])) == op.shape[axis]}
        if len(kept) == len(ends):
            return frozenset(kept)
    return _all_axes(op)


_SIZES = kinds("size shape output_size sizes dim start_dim end_dim dtype layout device pin_memory")
_SHAPES_ONLY = UNIFORM | _UNFILLED | kinds("reshape expand broadcast_to max_unpool2d col2im")


def differs(op: Op, twin: Op) -> bool:
    """Whether an operation was given other numbers at another size of the picture, sizes of its result left aside."""
    passed = _SIZES if op.kind in _SHAPES_ONLY else frozenset[str]()
    return _settings(op, passed) != _settings(twin, passed)


def _settings(op: Op, passed: frozenset[str]) -> Mapping[str, object]:
    return {name: value for name, value in op.settings.items() if name not in passed}
