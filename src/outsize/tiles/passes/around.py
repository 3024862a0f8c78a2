"""Rules of operations that look at neighbours or another place: convolution, pooling, resizing, padding, slicing."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from outsize.graph import Op
from outsize.tiles import spans
from outsize.tiles.arguments import pad_amounts, resize_ratio, slice_of
from outsize.tiles.passes.parts import WAITS, OpPart, PassOperand, Role, map_at
from outsize.tiles.spans import Span


def slide(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Convolution and pooling; a window as large as the map is a pool."""
    settings = _window_settings(op, operands)
    if settings is None:
        return WAITS
    first = operands[0].map
    assert first is not None
    kernels, paddings = op.ints("kernel"), op.ints("padding")
    if op.kind != "conv" and kernels == first.sizes and op.shape[-2:] == (1, 1) and not any(paddings):
        return OpPart(Role.POOL)
    rows, cols = (spans.sliding(*each) for each in settings)
    return OpPart(Role.LOCAL, map_at(op.shape, first.axes), (rows, cols))


def spread(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Transposed convolution."""
    settings = _window_settings(op, operands)
    if settings is None:
        return WAITS
    first = operands[0].map
    assert first is not None
    rows, cols = (_spreading(*each) for each in settings)
    return OpPart(Role.LOCAL, map_at(op.shape, first.axes), (rows, cols))


def _spreading(kernel: int, stride: int, padding: int, dilation: int) -> Span:
    """Need at least the pixel whose place is at or before the first one: a kernel may leave gaps before it."""
    spreading = spans.spreading(kernel, stride, padding, dilation)

    def span(lo: int, hi: int) -> tuple[int, int]:
        first, last = spreading(lo, hi)
        return min(first, (lo + padding) // stride), last

    return span


def _window_settings(op: Op, operands: Sequence[PassOperand]) -> list[tuple[int, int, int, int]] | None:
    """Return kernel, stride, padding and dilation of rows and of columns; None: they are not the last two axes."""
    first = operands[0].map
    num_dims = len(op.shape)
    if first is None or any(each.map is not None for each in operands[1:]):
        return None
    if first.axes != (num_dims - 2, num_dims - 1) or len(op.ints("kernel")) != 2:
        return None
    names = ("kernel", "stride", "padding", "dilation")
    return list(zip(*(op.ints(name) for name in names), strict=True))


def resize(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Nearest, bilinear and bicubic resizing by any factor, between corners or pixel centres."""
    num_dims, mode = len(op.shape), op.settings["mode"]
    taps = {"nearest": 0, "nearest_exact": 0, "bilinear": 1, "bicubic": 2}.get(str(mode))
    first = operands[0].map
    axes = (num_dims - 2, num_dims - 1)
    if taps is None or (first is not None and first.axes != axes):
        return WAITS
    out = map_at(op.shape, axes)
    if first is None:
        return OpPart(Role.LOCAL, out)
    rows, cols = (
        resized(source, size, resize_ratio(op, which), taps + 1)
        for which, (source, size) in enumerate(zip(first.sizes, out.sizes, strict=True))
    )
    return OpPart(Role.LOCAL, out, (rows, cols))


def resized(source: int, size: int, ratio: float | None, margin: int) -> Span:
    """Return the rows that a resize looks at, with a pixel to spare: torch rounds where it takes them from.

    Between corners and between centres the places differ by less than a pixel of the smaller map.
    """
    per_px = Fraction(source, size) if ratio is None else 1 / Fraction(ratio)
    corners = Fraction(source - 1, size - 1) if size > 1 else Fraction(0)

    def span(lo: int, hi: int) -> tuple[int, int]:
        first = min(lo * corners, lo * per_px, (lo + Fraction(1, 2)) * per_px - Fraction(1, 2))
        last = max((hi - 1) * corners, (hi - 1) * per_px, (hi - Fraction(1, 2)) * per_px)
        return floor(first) - margin, floor(last) + margin + 1

    return span


def shuffle(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Channels to pixels, and pixels to channels."""
    first, num_dims = operands[0].map, len(op.shape)
    if first is None or first.axes != (num_dims - 2, num_dims - 1):
        return WAITS
    out = map_at(op.shape, first.axes)
    if op.kind == "pixel_shuffle":
        need = spans.nearest(Fraction(1, op.ints("upscale_factor")[0]))
    else:
        factor = op.ints("downscale_factor")[0]
        need = spans.sliding(factor, factor, 0, 1)
    return OpPart(Role.LOCAL, out, (need, need))


def pad(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Pad or crop; what is repeated from inside lies at most as far inside as it is repeated outside."""
    first = operands[0].map
    assert first is not None
    amounts = op.ints("amounts")
    sides = [pad_amounts(amounts, len(op.shape), axis) for axis in first.axes]
    mode = op.settings["mode"]
    if mode == "constant":
        rows, cols = (spans.shifted(before) for before, _ in sides)
    elif mode in ("reflect", "replicate"):
        rows, cols = (_mirrored(n, *side) for n, side in zip(first.sizes, sides, strict=True))
    else:
        return WAITS
    return OpPart(Role.LOCAL, map_at(op.shape, first.axes), (rows, cols))


def _mirrored(size: int, before: int, after: int) -> Span:
    def span(lo: int, hi: int) -> tuple[int, int]:
        first, last = lo - before, hi - before
        if first < 0:
            last = max(last, min(before, -first) + 1)
        if last > size:
            first = min(first, size - 1 - min(after, last - size))
        return first, last

    return span


def take(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Slice: along rows or columns from a start, every so many."""
    first = operands[0].map
    if first is None or any(each.map is not None for each in operands[1:]):
        return WAITS
    axis, start, step = slice_of(op, operands[0].shape)
    needs: list[Span] = [spans.same, spans.same]
    if axis in first.axes:
        needs[first.axes.index(axis)] = spans.sliding(1, step, -start, 1)
    return OpPart(Role.LOCAL, map_at(op.shape, first.axes), (needs[0], needs[1]))
