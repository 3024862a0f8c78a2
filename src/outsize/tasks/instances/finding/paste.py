"""From a detector's raw answers to objects: every small mask goes into a window of its own, all at once on the device.

A detector answers with a box and a mask of 28 x 28 for each object. Pasting each into an array as large as the picture,
as torchvision does, costs objects times pixels. Here all pixels of all windows are one long row:

    pixel     0 1 2 3 4 5 6 7 8 ...          each pixel knows its object, and thereby its place in a small mask:
    object    0 0 0 0 0 0 1 1 1 ...          four neighbours there, weighed by distance, are compared with a half
    window    |--2 x 3--| |-- ...

The same rounding of boxes and the same weights as torchvision's, so that masks are equal where both have pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.object import Object
from outsize.tiles.window import Window

Answer = Mapping[str, Tensor]
"""One picture's `boxes` (object; left, top, right, bottom in pixels), `labels` (from 1: 0 is no object), `scores`, and
`masks` (object, 1, row, column) as probabilities on a small grid over each box."""

_AT_ONCE_PX = 1 << 21  # pixels of windows that are computed together: some 200 MB on the device
_RING_PX = 1  # of zeros around a small mask, as torchvision has it


@dataclass(frozen=True)
class _Places:
    """Where masks go: whole boxes in pixels, and the part of each that is inside of its picture."""

    box: NDArray[np.int64]  # object; row, column, height, width
    part: NDArray[np.int64]

    @property
    def num_px(self) -> NDArray[np.int64]:
        return self.part[:, 2] * self.part[:, 3]


def decode_objects(
    answers: Sequence[Answer], size: tuple[int, int], *, min_score: float = 0.0
) -> list[tuple[Object, ...]]:
    """Return the objects of each picture of `size` (height, width), masks as local windows on the host."""
    numbers = np.repeat(np.arange(len(answers)), [len(each["scores"]) for each in answers])
    if not len(numbers):
        return [() for _ in answers]
    boxes, labels, scores, masks = (
        torch.cat([each[name] for each in answers]) for name in ("boxes", "labels", "scores", "masks")
    )
    # one wait for the device: where masks go and how large they are decides what is computed
    table = torch.cat([boxes.float(), labels[:, None].float(), scores[:, None].float()], 1).cpu().numpy()
    kept = np.flatnonzero(table[:, 5] >= min_score)
    if len(kept) < len(table):
        table, numbers, masks = table[kept], numbers[kept], masks[torch.from_numpy(kept).to(masks.device)]
    places = _places(table[:, :4], masks.shape[-1], size)
    found: list[list[Object]] = [[] for _ in answers]
    labelled = (table[:, 4].astype(np.int64) - 1).tolist()
    sure = table[:, 5].tolist()
    for first, end, pixels, bounds in _paste(masks[:, 0], places):
        num_px = places.num_px[first:end]
        begins = (np.cumsum(num_px) - num_px).tolist()
        rows = places.part[first:end].tolist()
        for at, ((row, col, height, width), begin) in enumerate(zip(rows, begins, strict=True)):
            top, left, bottom, right = bounds[at]
            if top > bottom:  # not a pixel is above a half
                continue
            mask = pixels[begin : begin + height * width].reshape(height, width)
            window = Window(row + top, col + left, bottom - top + 1, right - left + 1)
            # a copy: a view would keep the pixels of all others
            inner = mask[top : bottom + 1, left : right + 1].copy()
            found[numbers[first + at]].append(Object(labelled[first + at], window, inner, sure[first + at]))
    return [tuple(each) for each in found]


def _places(boxes: NDArray[np.float32], side_px: int, size: tuple[int, int]) -> _Places:
    grow = (side_px + 2 * _RING_PX) / side_px
    half = (boxes[:, 2:] - boxes[:, :2]) * 0.5 * np.float32(grow)
    middle = (boxes[:, 2:] + boxes[:, :2]) * 0.5
    # towards zero, as a cast of floats does
    low, high = (middle - half).astype(np.int64), (middle + half).astype(np.int64)
    lengths = np.maximum(high - low + 1, 1)
    col, row = low.T
    width, height = lengths.T
    first_row, first_col = np.maximum(row, 0), np.maximum(col, 0)
    num_rows = np.clip(np.minimum(row + height, size[0]) - first_row, 0, None)
    num_cols = np.clip(np.minimum(col + width, size[1]) - first_col, 0, None)
    return _Places(
        np.stack([row, col, height, width], axis=1),
        np.stack([first_row, first_col, num_rows, num_cols], axis=1),
    )


def _paste(
    masks: Tensor, places: _Places
) -> Iterator[tuple[int, int, NDArray[np.bool_], list[tuple[int, int, int, int]]]]:
    """Yield (first object, end, pixels of their windows one after the other, bounds of what is set in each)."""
    padded = torch.nn.functional.pad(masks.float(), (_RING_PX,) * 4)
    batch = np.cumsum(places.num_px) // _AT_ONCE_PX
    cuts = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(batch)]
    for first, end in pairwise(cuts):
        part = _Places(places.box[first:end], places.part[first:end])
        pixels, bounds = _sample(padded[first:end], part)
        yield first, end, pixels.cpu().numpy(), bounds.cpu().tolist()


def _sample(padded: Tensor, places: _Places) -> tuple[Tensor, Tensor]:
    """Compute the pixels of all windows as one row of booleans, and the first and last row and column set in each."""
    device, side = padded.device, padded.shape[-1]
    num_px = places.num_px
    about = np.column_stack(
        [
            np.cumsum(num_px) - num_px,  # where in the row a window begins
            np.maximum(places.part[:, 3], 1),
            places.part[:, :2]
            - places.box[:, :2],  # rows and columns of the box that are outside of the picture
            places.box[:, 2:],
        ]
    )
    begin, width, row_off, col_off, box_height, box_width = torch.from_numpy(about).to(device).T
    sizes = torch.from_numpy(num_px).to(device)
    total = int(num_px.sum())
    which = torch.repeat_interleave(torch.arange(len(num_px), device=device), sizes, output_size=total)
    at = torch.arange(total, device=device) - begin[which]
    row = at // width[which]
    col = at - row * width[which]
    y, y_share = _neighbours(row + row_off[which], box_height[which], side)
    x, x_share = _neighbours(col + col_off[which], box_width[which], side)
    y_next, x_next = (y + 1).clamp(max=side - 1), (x + 1).clamp(max=side - 1)
    flat = padded.reshape(-1)
    start = which * (side * side)
    above = torch.lerp(flat[start + y * side + x], flat[start + y * side + x_next], x_share)
    below = torch.lerp(flat[start + y_next * side + x], flat[start + y_next * side + x_next], x_share)
    inside = torch.lerp(above, below, y_share) > 0.5
    return inside, _bounds(inside, row, col, which, len(num_px))


def _bounds(inside: Tensor, row: Tensor, col: Tensor, which: Tensor, num: int) -> Tensor:
    """Return top, left, bottom and right (the last ones) of what is set in each window; top > bottom: nothing."""
    far = 1 << 30
    found = []
    for side, least in ((row, True), (col, True), (row, False), (col, False)):
        start = torch.full((num,), far if least else -1, device=row.device, dtype=row.dtype)
        values = torch.where(inside, side, start.new_full((), far if least else -1))
        found.append(start.scatter_reduce(0, which, values, "amin" if least else "amax"))
    return torch.stack(found, 1)


def _neighbours(place: Tensor, length: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return the cell before a pixel's centre along one axis, and how far the pixel is from it to the next."""
    at = ((place.float() + 0.5) * (side / length.float()) - 0.5).clamp(0, side - 1)
    before = at.floor()
    return before.long(), at - before
