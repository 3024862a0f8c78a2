"""The objects of a picture or scene in one file, read by windows; masks are bits, and as large as their objects.

windows    row, col, height, width of each object
class_ids  its class; one below 0 is no object, but a place of which nobody knows what is there
clipped    whether the border of the scene cuts it
ends       where its bytes in `bits` end
bits       masks, row by row, eight pixels in a byte
num_lost   outlines in which the centre of no pixel lies: they are no objects
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.made import read_arrays, write_arrays
from outsize.data.object import Object, crop, keep_inside, shrink_objects
from outsize.tiles.window import Window

UNKNOWN = -1  # class of a place that is neither learnt nor scored: a crowd, or a box without outline


@dataclass(frozen=True, eq=False)
class HeldObjects:
    """The objects of one scene, masks still packed."""

    windows: NDArray[np.int32]  # object; row, col, height, width
    class_ids: NDArray[np.int16]
    clipped: NDArray[np.bool_]
    ends: NDArray[np.int64]
    bits: NDArray[np.uint8]
    num_lost: NDArray[np.int64]

    @property
    def num_objects(self) -> int:
        """Objects, without places of which nobody knows."""
        return int(np.count_nonzero(self.class_ids >= 0))

    def touching(self, window: Window) -> NDArray[np.bool_]:
        """Say for each object whether its window shares pixels with `window`."""
        row, col, height, width = self.windows.T
        found: NDArray[np.bool_] = (row < window.row_end) & (row + height > window.row)
        found &= (col < window.col_end) & (col + width > window.col)
        return found

    def near(self, window: Window) -> tuple[Object, ...]:
        """Return the objects whose window shares pixels with `window`, whole, counted from the scene's corner."""
        return tuple(self._unpack(index) for index in np.flatnonzero(self.touching(window)).tolist())

    def all(self) -> tuple[Object, ...]:
        """Return all objects of the scene."""
        return tuple(self._unpack(index) for index in range(len(self.windows)))

    def _unpack(self, index: int) -> Object:
        row, col, height, width = self.windows[index].tolist()
        first = int(self.ends[index - 1]) if index else 0
        bits = np.unpackbits(self.bits[first : int(self.ends[index])], count=height * width)
        return Object(
            int(self.class_ids[index]),
            Window(row, col, height, width),
            bits.reshape(height, width).astype(np.bool_),
            clipped=bool(self.clipped[index]),
        )


def hold(objects: Sequence[Object], num_lost: int = 0) -> HeldObjects:
    """Pack objects."""
    packed = [np.packbits(each.mask) for each in objects]
    places = [(each.window.row, each.window.col, each.window.height, each.window.width) for each in objects]
    return HeldObjects(
        np.array(places, np.int32).reshape(-1, 4),
        np.array([each.class_id for each in objects], np.int16),
        np.array([each.clipped for each in objects], np.bool_),
        np.cumsum([len(each) for each in packed], dtype=np.int64),
        np.concatenate(packed) if packed else np.zeros(0, np.uint8),
        np.array(num_lost),
    )


def save_objects(target: Path, objects: Sequence[Object], key: str, num_lost: int = 0) -> None:
    """Write the objects of a scene; `key` says what they were made of."""
    write_arrays(target, vars(hold(objects, num_lost)), key)


def load_objects(path: Path) -> HeldObjects:
    """Read the objects of a scene."""
    return HeldObjects(**read_arrays(path, HeldObjects.__dataclass_fields__, "objects"))


class ObjectFiles:
    """Reads objects of many scenes, each file once; for any number of threads."""

    def __init__(self) -> None:
        self._held: dict[tuple[Path, int], HeldObjects] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ObjectFiles], tuple[()]]:
        """In another process, files are read again."""
        return ObjectFiles, ()

    def of(self, path: Path, shrink: int = 1) -> HeldObjects:
        """Return all objects of a scene that is read at a part of its size."""
        with self._lock:
            if (path, shrink) not in self._held:
                held = load_objects(path)
                self._held[path, shrink] = held if shrink == 1 else hold(shrink_objects(held.all(), shrink))
            return self._held[path, shrink]

    def in_window(
        self, path: Path, window: Window, inside: NDArray[np.bool_], shrink: int = 1
    ) -> tuple[tuple[Object, ...], NDArray[np.bool_]]:
        """Return the objects of a window, counted from its corner, and which of its pixels may be learnt from.

        `inside` are the pixels that belong to the split. What the border of those, or of the window, cuts is clipped;
        what the border of the scene cuts is as every picture of it shows it, and can be learnt.
        """
        near = [replace(each, clipped=False) for each in self.of(path, shrink).near(window)]
        found = keep_inside(crop(near, window), inside)
        known = inside.copy()
        for each in found:
            if each.class_id == UNKNOWN:
                known[each.window.slices][each.mask] = False
        objects = tuple(each for each in found if each.class_id != UNKNOWN)
        for each in objects:  # an object in a crowd is one that somebody did outline
            known[each.window.slices][each.mask] = True
        return objects, known
