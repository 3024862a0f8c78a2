"""An object in a picture: its class, the window it lies in, its mask there; and changes of a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outsize.data.arrays import nearest_px
from outsize.tiles.window import Window

Mask = NDArray[np.bool_]
Box = tuple[float, float, float, float]  # left, top, right, bottom, as torchvision has them


@dataclass(frozen=True, eq=False)
class Object:
    """One object of a picture or scene; its mask is as large as the object, however large the picture is.

    +------------- picture -------------+
    |      +--- window ---+             |     `window` touches the object on all four sides,
    |      |   #####      |             |     `mask` has the window's shape
    |      |  ########### |             |
    |      +--------------+             |
    +-----------------------------------+
    """

    class_id: int  # 0 .. number of classes - 1
    window: Window
    mask: Mask
    score: float = 1.0
    clipped: bool = False  # cut by the border of what was read: its shape there is not its own

    @property
    def num_px(self) -> int:
        """Pixels of the object."""
        return int(np.count_nonzero(self.mask))

    @property
    def box(self) -> Box:
        """The object's box."""
        return box_of(self.window)


def box_of(window: Window) -> Box:
    """Return left, top, right and bottom of a window; right and bottom are the far sides of its last pixels."""
    return float(window.col), float(window.row), float(window.col_end), float(window.row_end)


def make_object(
    class_id: int, window: Window, mask: Mask, *, score: float = 1.0, clipped: bool = False
) -> Object | None:
    """Return the object of a mask somewhere in a picture, in the smallest window; None where no pixel is set."""
    rows, cols = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    top, left, height, width = int(rows[0]), int(cols[0]), int(rows[-1] - rows[0]), int(cols[-1] - cols[0])
    inner = np.ascontiguousarray(mask[top : top + height + 1, left : left + width + 1], dtype=np.bool_)
    place = Window(window.row + top, window.col + left, height + 1, width + 1)
    return Object(class_id, place, inner, score, clipped)


def shared_px(one: Object, other: Object) -> int:
    """Count the pixels that two objects of one picture have in common."""
    common = one.window.intersect(other.window)
    if not common.num_px:
        return 0
    return int(
        np.count_nonzero(
            one.mask[common.within(one.window).slices] & other.mask[common.within(other.window).slices]
        )
    )


def iou(one: Object, other: Object) -> float:
    """Return the common pixels of two objects over all their pixels."""
    shared = shared_px(one, other)
    return shared / (one.num_px + other.num_px - shared) if shared else 0.0


def crop(objects: Sequence[Object], window: Window) -> tuple[Object, ...]:
    """Return what of the objects lies in a window, counted from its corner; those that lost pixels are clipped."""
    found = []
    for each in objects:
        common = each.window.intersect(window)
        if not common.num_px:
            continue
        if common == each.window:
            found.append(replace(each, window=common.within(window)))
            continue
        inner = each.mask[common.within(each.window).slices]
        lost = int(np.count_nonzero(inner)) < each.num_px
        cut = make_object(
            each.class_id,
            common.within(window),
            inner,
            score=each.score,
            clipped=each.clipped or lost,
        )
        if cut is not None:
            found.append(cut)
    return tuple(found)


def keep_inside(objects: Sequence[Object], inside: Mask) -> tuple[Object, ...]:
    """Return what of a window's objects lies on pixels of `inside`; those that lost pixels are clipped."""
    if inside.all():
        return tuple(objects)
    found = []
    for each in objects:
        kept = each.mask & inside[each.window.slices]
        lost = int(np.count_nonzero(kept)) < each.num_px
        cut = make_object(each.class_id, each.window, kept, score=each.score, clipped=each.clipped or lost)
        if cut is not None:
            found.append(cut)
    return tuple(found)


def flip(objects: Sequence[Object], width: int) -> tuple[Object, ...]:
    """Mirror the objects of a picture left-right."""
    return tuple(
        replace(
            each,
            window=replace(each.window, col=width - each.window.col_end),
            mask=np.ascontiguousarray(each.mask[:, ::-1]),
        )
        for each in objects
    )


def turn(objects: Sequence[Object], height: int, width: int, quarters: int) -> tuple[Object, ...]:
    """Turn the objects of a picture against the clock, as `numpy.rot90` turns its pixels."""
    found = tuple(objects)
    for _ in range(quarters % 4):
        found = tuple(_quarter(each, width) for each in found)
        height, width = width, height
    return found


def scale(objects: Sequence[Object], size: tuple[int, int], target: tuple[int, int]) -> tuple[Object, ...]:
    """Bring the objects of a picture of `size` (height, width) to `target`, by the nearest pixel.

    One that falls between the pixels of a smaller picture is gone.
    """
    if size == target:
        return tuple(objects)
    rows, cols = (nearest_px(before, after) for before, after in zip(size, target, strict=True))
    return _take(objects, rows, cols)


def shrink_objects(objects: Sequence[Object], shrink: int) -> tuple[Object, ...]:
    """Bring objects to a picture of which every `shrink`-th pixel a side is read, from the middle of each square."""
    ends = [(each.window.row_end, each.window.col_end) for each in objects] or [(0, 0)]
    rows, cols = (np.arange(shrink // 2, max(each), shrink) for each in zip(*ends, strict=True))
    return _take(objects, rows, cols)


def _take(objects: Sequence[Object], rows: NDArray[np.intp], cols: NDArray[np.intp]) -> tuple[Object, ...]:
    """Return the objects of a picture made of these rows and columns of another."""
    found = []
    for each in objects:
        window = each.window
        top, bottom = np.searchsorted(rows, (window.row, window.row_end))
        left, right = np.searchsorted(cols, (window.col, window.col_end))
        place = Window(int(top), int(left), int(bottom - top), int(right - left))
        mask = each.mask[rows[top:bottom] - window.row][:, cols[left:right] - window.col]
        changed = make_object(each.class_id, place, mask, score=each.score, clipped=each.clipped)
        if changed is not None:
            found.append(changed)
    return tuple(found)


def _quarter(each: Object, width: int) -> Object:
    """Turn by a quarter: the last column becomes the first row."""
    before = each.window
    window = Window(width - before.col_end, before.row, before.width, before.height)
    return replace(each, window=window, mask=np.ascontiguousarray(np.rot90(each.mask)))
