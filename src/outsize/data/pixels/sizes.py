"""Brings a sample to another size: pixels bilinear, what is learnt by the nearest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from outsize.data.arrays import nearest_px
from outsize.data.sample import Sample
from outsize.tiles.window import Window
from outsize.units import Size, sides_of


def resize(sample: Sample, size_px: Size) -> Sample:
    """Bring a sample with an image of bytes or of float32 to a size.

    Invalid pixels take no part: they would draw a dark rim around what is valid.
    """
    before, after = sample.valid.shape, sides_of(size_px)
    if before == after:
        return sample
    rows, cols = (nearest_px(*sides) for sides in zip(before, after, strict=True))
    target = sample.target.resize(after)
    part = _rectangle(sample.valid)
    if part is None:
        valid = sample.valid.take(rows, 0).take(cols, 1)
        image = _weighted(sample, after)
        np.copyto(image, 0, where=~valid)
        return Sample(image, valid, target)
    image = _bilinear(_with_rim(sample.image, part), after)
    inside = _between(rows, part.row, part.row_end), _between(cols, part.col, part.col_end)
    valid = np.zeros(after, np.bool_)
    valid[inside] = True
    _clear_around(image, *inside)
    return Sample(image, valid, target)


def _between(places: NDArray[np.intp], begin: int, end: int) -> slice:
    """Return where numbers that grow are not below one and below another."""
    return slice(*np.searchsorted(places, (begin, end)).tolist())


def _clear_around(image: NDArray[Any], rows: slice, cols: slice) -> None:
    """Set to 0 what is not in rows and columns."""
    image[:, : rows.start] = 0
    image[:, rows.stop :] = 0
    image[:, rows, : cols.start] = 0
    image[:, rows, cols.stop :] = 0


def _rectangle(valid: NDArray[np.bool_]) -> Window | None:
    """Return the part that is valid where it is a rectangle, as in a window that reaches over the end of a picture."""
    rows, cols = np.flatnonzero(valid.any(1)), np.flatnonzero(valid.any(0))
    if not rows.size:
        return None
    row, col = int(rows[0]), int(cols[0])
    part = Window(row, col, int(rows[-1]) + 1 - row, int(cols[-1]) + 1 - col)
    return part if valid[part.slices].all() else None


def _with_rim(image: NDArray[Any], part: Window) -> NDArray[Any]:
    """Repeat the outermost pixels of a part once around it: a pixel whose nearest is inside sees no further.

    . . . . . .
    . a a b b .
    . a A B b .        A, B: valid
    . a a b b .
    . . . . . .
    """
    cols = part.slices[1]
    if part.row > 0:
        image[:, part.row - 1, cols] = image[:, part.row, cols]
    if part.row_end < image.shape[1]:
        image[:, part.row_end, cols] = image[:, part.row_end - 1, cols]
    wide = slice(max(0, part.row - 1), part.row_end + 1)
    if part.col > 0:
        image[:, wide, part.col - 1] = image[:, wide, part.col]
    if part.col_end < image.shape[2]:
        image[:, wide, part.col_end] = image[:, wide, part.col_end - 1]
    return image


def _weighted(sample: Sample, size_px: tuple[int, int]) -> NDArray[Any]:
    weights = sample.valid.astype(np.float32)
    # a pixel whose nearest one is valid has a weight of at least 1/4
    share = np.maximum(_bilinear(weights[None], size_px), 0.25)
    image: NDArray[np.float32] = _bilinear(sample.image * weights, size_px) / share
    return np.rint(image).astype(np.uint8) if sample.image.dtype == np.uint8 else image


def _bilinear(image: NDArray[Any], size_px: tuple[int, int]) -> NDArray[Any]:
    """Bring an image to a size; bytes are rounded, and are quickest where the bands of a pixel lie side by side."""
    tensor = torch.from_numpy(image)[None]
    if tensor.dtype == torch.uint8:
        num_bands, height, width = image.shape
        tensor = tensor.contiguous(memory_format=torch.channels_last)
        # torch looks at the step from one image to the next, though there is one, and would go about it by bands
        steps = (num_bands * height * width, 1, num_bands * width, num_bands)
        tensor = tensor.as_strided(tensor.shape, steps)
    made = functional.interpolate(tensor, size=size_px, mode="bilinear")
    resized: NDArray[Any] = made[0].contiguous().numpy()
    return resized
