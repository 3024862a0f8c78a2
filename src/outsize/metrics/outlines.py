"""Outlines of all classes at once, one bit of a number for each class, and which of them lie near a pixel.

A pixel may lie on the outlines of several classes. With a bit for each class, one operation on a map of whole numbers
does for all classes what a mask for each would need one operation each for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import torch
from torch import Tensor

MAX_BITS = 63  # the sign is left alone
_TYPES = ((7, torch.int8), (15, torch.int16), (31, torch.int32), (MAX_BITS, torch.int64))
_PIECE = 2**16  # points whose bits are counted at once


def as_bits(classes: Tensor, wanted: Sequence[int]) -> Tensor:
    """Turn a map of bytes into bits, bit i for the class wanted[i]; 0 where a pixel is of none of them."""
    dtype = next(dtype for num_bits, dtype in _TYPES if len(wanted) <= num_bits)
    table = [0] * 256
    for bit, value in enumerate(wanted):
        table[value] = 1 << bit
    on_device = torch.tensor(table, dtype=dtype, device=classes.device)
    return on_device.index_select(0, classes.flatten().int()).view(classes.shape)


def inner_outline(bits: Tensor) -> Tensor:
    """Return for each class its pixels of which one above, below, left or right is not of the class.

    The border of the picture is no outline: nobody knows how the class goes on.
    """
    surrounded = bits.clone()
    surrounded[1:] &= bits[:-1]
    surrounded[:-1] &= bits[1:]
    surrounded[:, 1:] &= bits[:, :-1]
    surrounded[:, :-1] &= bits[:, 1:]
    return bits ^ surrounded


def edge_outline(bits: Tensor) -> Tensor:
    """Return for each class the pixels that differ from that to the right, below, or below to the right."""
    differing = torch.zeros_like(bits)
    differing[:, :-1] |= bits[:, :-1] ^ bits[:, 1:]
    differing[:-1] |= bits[:-1] ^ bits[1:]
    differing[:-1, :-1] |= bits[:-1, :-1] ^ bits[1:, 1:]
    return differing


def spread(outline: Tensor, squares: Sequence[int], start: int, stop: int) -> list[Tensor]:
    """Return the outlines that lie within each distance (squared, in px) of the pixels of rows start to stop.

    A disc is a stack of runs of pixels, the longest in the middle. All runs of one length are made at once, from those
    one pixel shorter, and added to every disc above and below by as many rows as the run lies from the middle:

          ###       offset 2, half of the run 1         squares = [5]
         #####      offset 1, half 2
         ##o##      offset 0, half 2
         #####
          ###
    """
    discs = [torch.zeros_like(outline[start:stop]) for _ in squares]
    runs = outline.clone()
    wanted: dict[int, list[tuple[Tensor, int]]] = {}
    for disc, square in zip(discs, squares, strict=True):
        for offset in range(isqrt(square) + 1):
            wanted.setdefault(isqrt(square - offset * offset), []).append((disc, offset))
    for half in range(max(wanted, default=-1) + 1):
        if half:
            runs[:, half:] |= outline[:, :-half]
            runs[:, :-half] |= outline[:, half:]
        for disc, offset in wanted.get(half, ()):
            _add_rows(disc, runs, start + offset)
            if offset:
                _add_rows(disc, runs, start - offset)
    return discs


def count_bits(values: Tensor, num_bits: int) -> Tensor:
    """Count how many of the values have each bit."""
    bits = torch.arange(num_bits, dtype=values.dtype, device=values.device)
    total = torch.zeros(num_bits, dtype=torch.int64, device=values.device)
    for piece in values.split(_PIECE):
        total += ((piece[:, None] >> bits) & 1).sum(0)
    return total


def _add_rows(disc: Tensor, runs: Tensor, start: int) -> None:
    """Add the runs of the rows from `start`; rows outside the picture have none."""
    first, last = max(0, start), min(len(runs), start + len(disc))
    if first < last:
        disc[first - start : last - start] |= runs[first:last]
