"""Operations whose result looks at a window of rows and columns that slides on: convolution and pooling.

A result's row o looks at rows o x stride - padding and on. It is made by the rank that holds row o x stride, so
each needs `padding` rows from before and `reach - stride - padding` from after, where a negative number is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from outsize.errors import ModelError, explain
from outsize.strategies.spatial.borders import (
    Crossing,
    Need,
    OwnRows,
    arrive,
    leave,
    refuse_few,
    with_borders,
)
from outsize.strategies.spatial.shard import COLS, ROWS, Shard

Run = Callable[[Tensor, tuple[int, int]], Tensor]  # on rows and columns, with so much padding that torch adds


class Sliding(NamedTuple):
    """How a window slides along one axis."""

    reach: int
    stride: int
    padding: int
    fill: float = 0.0  # outside of the picture
    ceil: bool = False  # a last window may go beyond the padding


def slide(shard: Shard, inputs: Tensor, ways: tuple[Sliding, Sliding], run: Run) -> Tensor:
    """Return this rank's part of a result; along an axis that is whole, torch pads by itself."""
    pads = tuple(
        way.padding if shard.side(axis).is_whole else 0 for axis, way in zip((ROWS, COLS), ways, strict=True)
    )

    def by_rows(part: Tensor) -> Tensor:
        return _along(shard, part, COLS, ways[1], by_cols)

    def by_cols(part: Tensor) -> Tensor:
        return run(part, (pads[0], pads[1]))

    return _along(shard, inputs, ROWS, ways[0], by_rows)


def refuse(found: str, needed: str) -> NoReturn:
    """Refuse a model that cannot be spread."""
    raise ModelError(explain("a picture cannot be spread over ranks", found, needed, "run it on one rank"))


def _along(shard: Shard, inputs: Tensor, axis: int, way: Sliding, run: Callable[[Tensor], Tensor]) -> Tensor:
    side, num = shard.side(axis), inputs.shape[axis]
    if side.is_whole:
        return run(inputs)
    reach, stride, padding = way.reach, way.stride, way.padding
    num_out = _count(num, way, goes_on=side.after is not None)
    end = (num_out - 1) * stride + reach - padding  # the results look at rows -padding to here
    first, last = (
        -(-padding // stride),
        min(num_out - 1, (num - reach + padding) // stride),
    )  # by own rows alone
    need = Need(padding, max(0, reach - stride - padding))
    if first == 0 and last == num_out - 1 and need == (0, 0):
        return run(inputs)
    refuse_few(inputs, need, axis)
    missing = padding if side.before is None else 0, max(0, end - num) if side.after is None else 0
    if last < first:  # no result looks at own rows alone
        around = _filled(with_borders(inputs, need, shard, axis), axis, missing, way.fill)
        return run(around.narrow(axis, 0, padding + end))
    start, stop = first * stride - padding, last * stride - padding + reach
    ends = OwnRows(
        slice(start, stop),
        (first - 1) * stride - padding + reach if first else 0,
        num - ((last + 1) * stride - padding) if last < num_out - 1 else 0,
    )
    crossing = Crossing(shard, axis, need)
    middle, before, after = leave(inputs, ends, crossing)
    found = run(middle)  # while borders are on their way
    before, after = arrive(before, after, crossing)
    parts = [found]
    if first:
        parts.insert(0, run(_filled(before, axis, (missing[0], 0), way.fill)))
    if last < num_out - 1:
        after = _filled(after, axis, (0, missing[1]), way.fill)
        parts.append(run(after.narrow(axis, 0, end - ((last + 1) * stride - padding))))
    return torch.cat(parts, dim=axis)


def _count(num: int, way: Sliding, *, goes_on: bool) -> int:
    """Return how many results are this rank's; those of the last one as torch counts those of the whole."""
    if goes_on:
        if num % way.stride:
            found = f"{num} rows on a rank before a stride of {way.stride}"
            refuse(found, "rows in multiples of the network's stride")
        return num // way.stride
    free = num + 2 * way.padding - way.reach
    steps = free // way.stride
    if way.ceil and -(-free // way.stride) * way.stride < num + way.padding:
        steps = -(-free // way.stride)
    if steps < 0:
        refuse(f"{num} rows on the last rank for a window of {way.reach}", "more rows on each rank")
    return steps + 1


def _filled(part: Tensor, axis: int, missing: tuple[int, int], fill: float) -> Tensor:
    """Fill up what lies outside of the picture."""
    if not any(missing):
        return part
    amounts = (0, 0, *missing) if axis == ROWS else missing
    return functional.pad(part, amounts, value=fill)
