"""Derives a model's halo from its graphs at two sizes of the picture: what differs between them depends on the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import lcm

from torch import nn

from outsize.errors import TraceError, found_in
from outsize.graph import ModelGraph, Op
from outsize.measure.graphs import example_shape, trace
from outsize.tiles.halo import Halo, Obstacle, derive_halo
from outsize.tiles.sizes import OTHER_OPERATIONS, OTHER_PLACES
from outsize.tiles.walk import OTHER_NUMBERS, reaching

_UNIT_PX = 384  # sides of the first picture: 3 times a power of two
_LARGEST_STRIDE_PX = 128
# The second picture: small, higher than wide, odd multiples of the stride, and in a batch of another number.
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103)
_LEAST_PX = 80
_FIRST_SAMPLES, _SAMPLES = 2, 19  # one would hide what is done to samples together

_OF_SIZE = (OTHER_OPERATIONS, OTHER_NUMBERS, OTHER_PLACES)
ONE_SAMPLE = "takes one sample at a time"
ONE_SIZE = "takes pictures of some sizes only"


def derive(model: nn.Module, in_channels: int, largest_px: tuple[int, int] | None = None) -> Halo:
    """Derive how far a model looks around each pixel; see `_derive`.

    A very long stride of one that cannot be cut comes of resizing to a size, and is no stride: pictures that are
    multiples of it would be too large to try the model on.
    """
    halo = _derive(model, in_channels, largest_px)
    if halo.exact or halo.stride_px <= _UNIT_PX:
        return halo
    return replace(halo, stride_px=_LARGEST_STRIDE_PX)


def _derive(model: nn.Module, in_channels: int, largest_px: tuple[int, int] | None) -> Halo:
    """Derive how far a model looks around each pixel, from a picture as large as the largest and from a small one.

    Where a model fills pictures up to multiples of more than its stride, with zeros behind, windows must be such
    multiples too: a scene is filled up likewise.
    """
    try:
        graph = trace(model, _first_shape(in_channels, largest_px, _UNIT_PX))
    except TraceError as error:
        return _of_one_sample(model, in_channels, largest_px, error)
    if (odd := _odd_factor(graph)) > 1:
        graph = trace(model, _first_shape(in_channels, largest_px, _UNIT_PX * odd))
    alone = derive_halo(graph)
    first: Halo | None = None
    # one that is very large is a part of the picture's own size, most likely
    least_px = stride_px = _guessed_stride(graph, alone)
    while stride_px <= max(_LARGEST_STRIDE_PX, least_px):
        try:
            twin = trace(model, _second_shape(in_channels, stride_px))
        except TraceError as error:
            why = f"{ONE_SIZE} ({found_in(str(error))})"
            first = first or replace(alone, obstacles=(*alone.obstacles, Obstacle("", "size", why)))
        else:
            halo = derive_halo(graph, twin)
            first = first or halo
            if not any(each.reason in _OF_SIZE for each in halo.obstacles):
                more_px = 1 if stride_px == least_px else stride_px
                return replace(halo, stride_px=lcm(halo.stride_px, more_px))
            if not _only_fills(graph, twin):
                return first
        stride_px *= 2
    assert first is not None
    return first


def _of_one_sample(
    model: nn.Module, in_channels: int, largest_px: tuple[int, int] | None, error: TraceError
) -> Halo:
    """Look at a model that takes no two samples at once: it may be given whole scenes, one after the other."""
    _, *shape = _first_shape(in_channels, largest_px, _UNIT_PX)
    try:
        alone = derive_halo(trace(model, (1, *shape)))
    except TraceError:
        raise error from None
    return replace(alone, obstacles=(*alone.obstacles, Obstacle("", "batch", ONE_SAMPLE)))


def _first_shape(in_channels: int, largest_px: tuple[int, int] | None, unit_px: int) -> tuple[int, ...]:
    height, width = (
        -(-max(own, least) // unit_px) * unit_px
        for own, least in zip(largest_px or (0, 0), example_shape(1)[2:], strict=True)
    )
    return (_FIRST_SAMPLES, in_channels, height, width + unit_px * (width == height))


def _guessed_stride(graph: ModelGraph, alone: Halo) -> int:
    """Return the stride with pooling to a size taken for pooling by a factor, which the second picture may bear out."""
    with suppress(TraceError):
        stride_px = derive_halo(graph, graph).stride_px
        if stride_px <= _UNIT_PX:
            return stride_px
    return min(alone.stride_px, _LARGEST_STRIDE_PX)


def _odd_factor(graph: ModelGraph) -> int:
    """Return the product of what strides are multiples of besides 2 and 3, as for patches of 14 or 5 pixels."""
    found = 1
    for op in graph.ops:
        for stride in (each for name in ("stride", "downscale_factor", "step") for each in op.ints(name)):
            for prime in (5, 7, 11, 13):
                if stride % prime == 0 and found % prime:
                    found *= prime
    return found


def _second_shape(in_channels: int, stride_px: int) -> tuple[int, ...]:
    return _SAMPLES, in_channels, *small_sizes(stride_px)[0][0]


def small_sizes(stride_px: int) -> list[list[tuple[int, int]]]:
    """Return twice two sizes of small pictures, all sides other odd multiples of the stride; the first was traced."""
    least = -(-_LEAST_PX // stride_px)
    one, two, three, four, five = (each * stride_px for each in [n for n in _PRIMES if n >= least][:5])
    return [[(three, one), (two, four)], [(one, five), (four, two)]]


def _only_fills(graph: ModelGraph, twin: ModelGraph) -> bool:
    """Whether all that the second graph does besides is to add zeros behind the picture, and to take them off."""
    return _kinds(reaching(graph)) == _kinds(reaching(twin))


def _kinds(ops: Sequence[Op]) -> list[object]:
    shapes = {op.index: op.shape for op in ops}
    return [_key(op, shapes) for op in ops if op.kind not in ("slice", "clone") and not _fills(op)]


def _key(op: Op, shapes: Mapping[int, tuple[int, ...]]) -> object:
    if op.kind == "upsample":
        before = shapes[op.inputs[0]]
        return op.kind, [Fraction(old, new) for old, new in zip(before[2:], op.shape[2:], strict=True)]
    return (op.kind, op.ints("amounts")) if op.kind == "pad" else op.kind


def _fills(op: Op) -> bool:
    if op.kind != "pad":
        return False
    amounts, zeros = op.ints("amounts"), op.settings["mode"] == "constant" and not op.settings.get("value")
    return not any(amounts) or (zeros and not any(amounts[::2]))
