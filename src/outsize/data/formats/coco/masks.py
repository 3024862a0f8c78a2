"""Burns outlines, runs and boxes of COCO annotations into masks; numbers only, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outsize.data.formats.coco.file import Annotation, CocoPicture, Ring, Rle
from outsize.data.formats.coco.runs import unpack_counts
from outsize.tiles.window import Window

Mask = NDArray[np.bool_]


def burn_classes(
    picture: CocoPicture, values: Mapping[str, int], *, outside_value: int, ignore_value: int
) -> NDArray[np.uint8]:
    """Return the class value of each pixel; `values` gives that of each category.

    Where objects overlap the smaller one counts: a cap lies on its bottle. Of an object without outline only the
    box is known: it is ignored, where no other object is.
    """
    labels = np.full((picture.height, picture.width), outside_value, np.uint8)
    burnt: list[tuple[int, int, Window, Mask]] = []
    for number, each in enumerate(picture.annotations):
        window, mask = burn_one(each, picture.height, picture.width)
        if not each.rings and each.rle is None:
            labels[window.slices][mask] = ignore_value
        else:
            burnt.append((-int(np.count_nonzero(mask)), number, window, mask))
    for _, number, window, mask in sorted(burnt, key=lambda item: item[:2]):
        labels[window.slices][mask] = values[picture.annotations[number].category]
    return labels


def burn_one(annotation: Annotation, height: int, width: int) -> tuple[Window, Mask]:
    """Return where in the picture an object is, and its mask there; what lies outside of the picture is cut off."""
    if annotation.rle is not None:
        if annotation.rle.size != (height, width):
            raise ValueError("runs of {} x {} px".format(*annotation.rle.size))
        return Window(0, 0, height, width), decode_rle(annotation.rle)
    if not annotation.rings:
        x, y, box_width, box_height = annotation.box or (0.0, 0.0, 0.0, 0.0)
        rings: Sequence[Ring] = ((x, y, x + box_width, y, x + box_width, y + box_height, x, y + box_height),)
    else:
        rings = annotation.rings
    window = _around(rings, height, width)
    mask = np.zeros((window.height, window.width), np.bool_)
    for ring in rings:
        mask |= fill_ring(ring, window)
    return window, mask


def fill_ring(ring: Ring, window: Window) -> Mask:
    """Return the pixels of a window whose centre lies in a ring, by the even-odd rule.

    Each edge toggles all pixels to the right of it, in the rows whose centre it crosses; toggled oddly often
    means inside:

        .  .  /X  X  X\\ .  .      the left edge toggles X and what follows, the right edge toggles the rest back
    """
    toggles = np.zeros((window.height, window.width + 1), np.uint8)
    corners = np.array(ring, np.float64).reshape(-1, 2) - (window.col + 0.5, window.row + 0.5)
    x, y = corners.T  # seen from the centre of the first pixel, so that centres are whole numbers
    x_next, y_next = np.roll(x, -1), np.roll(y, -1)
    low, high = np.minimum(y, y_next), np.maximum(y, y_next)
    first = (
        np.ceil(low).clip(0, window.height).astype(np.int64)
    )  # a centre on the lower end counts, on the upper not:
    end = np.ceil(high).clip(0, window.height).astype(np.int64)  # so a corner on a centre is crossed once
    num = end - first
    edge = np.repeat(np.arange(len(x)), num)
    row = np.arange(num.sum()) - np.repeat(np.cumsum(num) - num, num) + first[edge]
    slope = np.divide(x_next - x, y_next - y, out=np.zeros_like(x), where=y_next != y)
    col = np.ceil(x[edge] + (row - y[edge]) * slope[edge]).clip(0, window.width).astype(np.int64)
    np.bitwise_xor.at(toggles, (row, col), 1)
    return np.bitwise_xor.accumulate(toggles[:, :-1], axis=1).astype(np.bool_)


def decode_rle(rle: Rle) -> Mask:
    """Return the mask (row, column) of runs, which go down the columns."""
    height, width = rle.size
    counts = unpack_counts(rle.counts) if isinstance(rle.counts, str) else rle.counts
    if sum(counts) != height * width or min(counts, default=0) < 0:
        raise ValueError(f"runs of {sum(counts)} pixels for {height} x {width}")
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape(width, height).T


def _around(rings: Sequence[Ring], height: int, width: int) -> Window:
    """Return the smallest window that holds all rings, inside of the picture."""
    x = np.concatenate([np.array(ring[0::2]) for ring in rings]).clip(0, width)
    y = np.concatenate([np.array(ring[1::2]) for ring in rings]).clip(0, height)
    row, col = int(np.floor(y.min())), int(np.floor(x.min()))
    return Window(row, col, int(np.ceil(y.max())) - row, int(np.ceil(x.max())) - col)
