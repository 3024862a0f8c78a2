"""Reads the arguments of an operation: how much to pad, by what factor to resize, where to begin a slice."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.graph import Op


def pad_amounts(amounts: Sequence[int], num_dims: int, axis: int) -> tuple[int, int]:
    """Return how much is padded before and after along an axis; the list begins with the last one."""
    start = 2 * (num_dims - 1 - axis)
    before, after = (*amounts[start : start + 2], 0, 0)[:2]
    return before, after


def resize_ratio(op: Op, which: int) -> float | None:
    """Return the factor that a resize was given for rows or columns, None where it was given a size."""
    scales = op.settings.get("scales")
    if not isinstance(scales, tuple):
        return None
    given = scales[-2:][which]
    return float(given) if isinstance(given, int | float) and given > 0 else None


def slice_of(op: Op, shape: Sequence[int]) -> tuple[int, int, int]:
    """Return axis, start and step of a slice."""
    axis = op.ints("dim")[0] % len(shape) if op.ints("dim") else 0
    start, step = ((op.ints(key) or (least,))[0] for key, least in (("start", 0), ("step", 1)))
    return axis, max(0, min(start + shape[axis] if start < 0 else start, shape[axis])), step
