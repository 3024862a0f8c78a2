"""Runs a model on shapes alone at the very sizes that it will be given, and sees that it does the same at each.

    small, small, windows        in full batches
    small, small, whole          alone
    full batches, what is left   of windows, but for how tensors are moved; and of small pictures, by two

Sizes that an operation is given may differ, but as sizes do: a number is the same for all, or grows evenly with the
height, the width or both. A choice that is made within a band of sizes breaks that, wherever the band lies. That one
sample is as one of two is for a trial to see: products are others there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import zip_longest

import torch
from torch import nn

from outsize.errors import first_line
from outsize.measure.trying.graphs import small_sizes
from outsize.measure.trying.logged import CRASHES, Done, log_of
from outsize.tiles.halo import Obstacle
from outsize.tiles.sizes import OTHER_OPERATIONS

OTHER_GIVEN = "is given other numbers or tensors for pictures of another size, or for another number of them"

_TRIED = 3  # samples at most that a trial runs together
_Shape = tuple[int, ...]
_Logs = dict[_Shape, list[Done]]
_LogOf = Callable[[_Shape], list[Done]]


def differing_at(model: nn.Module, shapes: Sequence[_Shape], stride_px: int) -> Obstacle | None:
    """Return the operation that is another, or is given something else, for inputs of these shapes; None: none is.

    Their sides are multiples of the stride, and the first of them is a full batch.
    """
    log = cache(lambda shape: _log(model, shape))
    try:
        for number in dict.fromkeys((shapes[0][0], 1)):
            group = [shape for shape in shapes if shape[0] == number]
            if group and (found := _of_sizes(log, group, stride_px)) is not None:
                return found
        return _of_numbers(log, shapes, stride_px)
    except _Refused as error:
        return Obstacle("", "size", str(error))


def _of_sizes(log: _LogOf, shapes: Sequence[_Shape], stride_px: int) -> Obstacle | None:
    few, more = small_sizes(stride_px)
    logs = {shape: log(shape) for shape in [*((*shapes[0][:2], *size) for size in few), *shapes]}
    found = _differing(list(logs.values()))
    if found is not None or (odd := _uneven(logs, _grows_with_a_side)) is None:
        return found
    logs |= {shape: log(shape) for shape in ((*shapes[0][:2], *size) for size in more)}
    return _differing(list(logs.values())) or (_uneven(logs, _grows_with_both) and odd)


def _of_numbers(log: _LogOf, shapes: Sequence[_Shape], stride_px: int) -> Obstacle | None:
    number, bands, *size = shapes[0]
    left = [(each, *shape) for each, *shape in shapes if each not in (1, number) and shape == [bands, *size]]
    pairs = [(shapes[0], each) for each in left]
    if number > _TRIED:
        small = bands, *small_sizes(stride_px)[0][0]
        pairs.append(((number, *small), (_TRIED, *small)))
    for pair in pairs:
        found = _differing([[replace(done, given=(), sizes=()) for done in log(each)] for each in pair])
        if found is not None:
            return found
    return None


class _Refused(Exception):
    """A model does not run at a size."""


def _log(model: nn.Module, shape: _Shape) -> list[Done]:
    try:
        return log_of(model, shape)
    except CRASHES as error:
        text = f"does not take pictures of {shape[-2]} x {shape[-1]} px ({first_line(error)})"
        raise _Refused(text) from error


def does_the_same(model: nn.Module, shapes: Sequence[_Shape]) -> bool:
    """Say whether a model runs the same operations on the same for inputs of these shapes, whatever their sides."""
    try:
        return _differing([[_unmoved(done) for done in _log(model, shape)] for shape in shapes]) is None
    except _Refused:
        return False


def does_as_traced(model: nn.Module, shape: _Shape) -> bool:
    """Say whether a model does the same while torch reads its graph as when it is called, which it may ask for.

    One that cannot be run on shapes as if it were read gives no reason to doubt its graph.
    """
    with suppress(_Refused):
        called = _log(model, shape)
        with _as_if_read():
            return _differing([called, _log(model, shape)]) is None
    return True


@contextmanager
def _as_if_read() -> Iterator[None]:
    names = "is_compiling", "is_exporting"
    own = [getattr(torch.compiler, name) for name in names]
    for name in names:
        setattr(torch.compiler, name, lambda: True)
    try:
        yield
    finally:
        for name, each in zip(names, own, strict=True):
            setattr(torch.compiler, name, each)


def _unmoved(done: Done) -> Done:
    """Leave out how tensors were cut and turned."""
    return replace(done, given=tuple(name for name, _ in done.given), sizes=())


def _differing(logs: Sequence[Sequence[Done]]) -> Obstacle | None:
    for other in logs[1:]:
        for one, two in zip_longest(logs[0], other):
            if one is None or two is None or (one.module, one.name) != (two.module, two.name):
                seen = one or two
                return Obstacle(seen.module, seen.name, OTHER_OPERATIONS)
            if (one.numbers, one.given, len(one.sizes)) != (two.numbers, two.given, len(two.sizes)):
                return Obstacle(one.module, one.name, OTHER_GIVEN)
    return None


_Law = Callable[[Sequence[tuple[int, int]], Sequence[int]], bool]


def _uneven(logs: _Logs, law: _Law) -> Obstacle | None:
    """Return the first operation one of whose sizes does not follow the picture's."""
    sides = [(shape[-2], shape[-1]) for shape in logs]
    for each in zip(*logs.values(), strict=True):
        for sizes in zip(*(one.sizes for one in each), strict=True):
            if len(set(sizes)) > 1 and not law(sides, sizes):
                return Obstacle(each[0].module, each[0].name, OTHER_GIVEN)
    return None


def _grows_with_a_side(sides: Sequence[tuple[int, int]], sizes: Sequence[int]) -> bool:
    """Whether a number is a share of the height, of the width or of the area, and a constant."""
    ways = [[height for height, _ in sides], [width for _, width in sides], [a * b for a, b in sides]]
    return any(_is_even(way, sizes) for way in ways)


def _is_even(way: Sequence[int], sizes: Sequence[int]) -> bool:
    far = next((n for n, each in enumerate(way) if each != way[0]), None)
    if far is None:
        return False
    run, rise = way[far] - way[0], sizes[far] - sizes[0]
    return all(
        (size - sizes[0]) * run == (each - way[0]) * rise for each, size in zip(way, sizes, strict=True)
    )


def _grows_with_both(sides: Sequence[tuple[int, int]], sizes: Sequence[int]) -> bool:
    """Whether a number is a sum of shares of height, width and area and a constant, as the area of what is padded.

    By elimination: a row that has nothing left of these must have nothing left of the number.
    """
    rows = [[*map(Fraction, (1, a, b, a * b, size))] for (a, b), size in zip(sides, sizes, strict=True)]
    for column in range(4):
        pivot = next((row for row in rows if row[column]), None)
        if pivot is not None:
            rows.remove(pivot)
            rows = [
                [each - own * row[column] / pivot[column] for each, own in zip(row, pivot, strict=True)]
                for row in rows
            ]
    return not any(row[-1] for row in rows)
