"""Resizes a part of a map as torch resizes all of it: rows and columns are taken from where they are in the whole."""

from __future__ import annotations

import torch
from torch import Tensor

from outsize.graph import Op
from outsize.tiles.arguments import resize_ratio

_CUBIC = -0.75  # torch's coefficient of bicubic interpolation


def resize(
    op: Op, part: Tensor, *, starts: tuple[int, int], sizes: tuple[int, int], wanted: tuple[range, range]
) -> Tensor:
    """Return the wanted rows and columns; `part` begins at `starts` of a map of `sizes`."""
    # columns first: they are fewer numbers, and what is then copied by rows lies in one piece
    for which in (1, 0):
        whole, out = sizes[which], op.shape[-2:][which]
        places, weights = _sources(op, which, whole, out, wanted[which], part)
        part = _taken(part, part.dim() - 2 + which, places - starts[which], weights)
    return part


def _sources(
    op: Op, which: int, whole: int, out: int, wanted: range, like: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return for each wanted row the rows it is made of, and how much of each; None: it is a copy of one.

    The arithmetic is torch's, in the precision in which torch does it: where rounding moves a row of a large picture
    by a little, it is moved so here, too.
    """
    exact = torch.float64 if like.dtype == torch.float64 else torch.float32
    index = torch.arange(wanted.start, wanted.stop, device=like.device).to(exact)
    mode, ratio = op.settings["mode"], resize_ratio(op, which)
    number = torch.tensor(whole, dtype=exact, device=like.device)
    if mode in ("bilinear", "bicubic") and op.settings["align_corners"]:
        scale = (number - 1) / (out - 1) if out > 1 else torch.zeros_like(number)
        place = index * scale
    else:
        scale = number / out if ratio is None else torch.full_like(number, 1.0 / ratio)
        if mode == "nearest":
            return (index * scale).floor().long().clamp(max=whole - 1)[:, None], None
        if mode == "nearest_exact":
            return ((index + 0.5) * scale).floor().long().clamp(max=whole - 1)[:, None], None
        place = (index + 0.5) * scale - 0.5
    if mode == "bilinear":
        place = place.clamp(min=0)
        low = place.floor().long().clamp(max=whole - 1)
        high = (low + 1).clamp(max=whole - 1)
        rest = (place - low).clamp(0, 1)
        return torch.stack((low, high), 1), torch.stack((1 - rest, rest), 1).to(like.dtype)
    low = place.floor()
    rest = place - low
    places = torch.stack([(low.long() + step).clamp(0, whole - 1) for step in (-1, 0, 1, 2)], 1)
    shares = (_far(rest + 1), _near(rest), _near(1 - rest), _far(2 - rest))
    return places, torch.stack(shares, 1).to(like.dtype)


def _near(distance: Tensor) -> Tensor:
    return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1


def _far(distance: Tensor) -> Tensor:
    return ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC


def _taken(part: Tensor, axis: int, places: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return part.index_select(axis, places[:, 0])
    shape = [1] * part.dim()
    shape[axis] = len(places)
    total = part.index_select(axis, places[:, 0]) * weights[:, 0].view(shape)
    for tap in range(1, places.shape[1]):
        total.addcmul_(part.index_select(axis, places[:, tap]), weights[:, tap].view(shape))
    return total
