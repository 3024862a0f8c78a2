"""Which input pixels an operation needs for output pixels [lo, hi), along one axis."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import floor

import numpy as np

# Half-open intervals, which may leave the picture: what lies outside is padding there and here.
Span = Callable[[int, int], tuple[int, int]]


def same(lo: int, hi: int) -> tuple[int, int]:
    """Need what is wanted: pointwise operations."""
    return lo, hi


def sliding(kernel: int, stride: int, padding: int, dilation: int) -> Span:
    """Convolution and pooling: output i sees inputs i * stride - padding + 0 .. dilation * (kernel - 1)."""

    def span(lo: int, hi: int) -> tuple[int, int]:
        return lo * stride - padding, (hi - 1) * stride - padding + dilation * (kernel - 1) + 1

    return span


def spreading(kernel: int, stride: int, padding: int, dilation: int) -> Span:
    """Transposed convolution: input i is spread over outputs i * stride - padding + 0 .. dilation * (kernel - 1)."""

    def span(lo: int, hi: int) -> tuple[int, int]:
        first = -((dilation * (kernel - 1) - padding - lo) // stride)
        return first, (hi - 1 + padding) // stride + 1

    return span


def nearest(ratio: Fraction, offset: Fraction = Fraction(0)) -> Span:
    """Nearest neighbour: output i sees input floor((i + offset) * ratio), ratio = input pixels per output pixel."""

    def span(lo: int, hi: int) -> tuple[int, int]:
        return floor((lo + offset) * ratio), floor((hi - 1 + offset) * ratio) + 1

    return span


def interpolating(ratio: Fraction, num_taps: int) -> Span:
    """Bilinear (2 taps) and bicubic (4) between pixel centres: half of the taps at or before the place, half after."""
    half = Fraction(1, 2)
    more = num_taps // 2 - 1

    def span(lo: int, hi: int) -> tuple[int, int]:
        first, last = floor((lo + half) * ratio - half), floor((hi - half) * ratio - half)
        return first - more, last + 2 + more

    return span


def after(first: Span, then: Span) -> Span:
    """Need what the second operation asks of the first."""

    def span(lo: int, hi: int) -> tuple[int, int]:
        return first(*then(lo, hi))

    return span


def shifted(by: int) -> Span:
    """Padding in front: output i sees input i - by."""

    def span(lo: int, hi: int) -> tuple[int, int]:
        return lo - by, hi - by

    return span


_LONGEST_PX = 1 << 20  # of a side for which positions are checked


@cache
def rounds_well(ratio: Fraction) -> bool:
    """Whether picking the nearest pixel in floating point is right by this ratio, however far from the corner."""
    if ratio.numerator & (ratio.numerator - 1) == 0 and ratio.denominator & (ratio.denominator - 1) == 0:
        return True
    outputs = np.arange(_LONGEST_PX)
    for twice in (0, 1):  # offsets of 0 and of a half
        right = (2 * outputs + twice) * ratio.numerator // (2 * ratio.denominator)
        for dtype in (np.float32, np.float64):
            places = np.add(outputs, twice / 2, dtype=dtype) * dtype(ratio.numerator / ratio.denominator)
            if not np.array_equal(np.floor(places).astype(np.int64), right):
                return False
    return True
