"""Counts objects: of each class in each split, and the most that one picture, or one window, can hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.object_files import HeldObjects, ObjectFiles
from outsize.data.sampling import areas_of
from outsize.data.scenes import LabelledScene
from outsize.data.split import Splits

_CELL_PX = 16  # places of a window are told apart no finer: the most of a cell holds for all in it


@dataclass(frozen=True)
class ObjectCounts:
    """What there is of objects; the most in one picture is the worst that a plan must be made for."""

    of_class: dict[
        str, list[int]
    ]  # of each split: objects of each class; one on a border counts on both sides
    most: int  # in one picture or scene
    most_in: str  # that picture
    num_clipped: int  # cut by the border of their scene
    num_lost: int  # outlines in which the centre of no pixel lies

    def as_dict(self) -> dict[str, Any]:
        """Return what data.json tells."""
        return asdict(self)

    @property
    def text(self) -> str:
        """What to say of them in a line."""
        per_split = ", ".join(f"{sum(counts):,} in {split}" for split, counts in self.of_class.items())
        lost = (
            f"; {self.num_lost:,} outlines hold the centre of no pixel, and are none" if self.num_lost else ""
        )
        return f"objects: {per_split}; the most, {self.most:,}, in {self.most_in}{lost}"


def count_objects(splits: Splits, num_classes: int) -> ObjectCounts | None:
    """Count the objects of all scenes; None where labels are classes of pixels."""
    files, most, most_in = ObjectFiles(), 0, ""
    of_class: dict[str, list[int]] = {}
    per_file: dict[object, tuple[int, int]] = {}
    has_objects = False
    for split, scenes in splits.items():
        counts = np.zeros(num_classes, np.int64)
        for scene in scenes:
            if scene.objects is None:
                continue
            has_objects = True
            held = files.of(scene.objects, scene.image.shrink)
            is_inside = np.zeros(len(held.windows), np.bool_)
            for area in areas_of(scene):
                is_inside |= held.touching(area)
            is_inside &= held.class_ids >= 0
            counts += np.bincount(held.class_ids[is_inside], minlength=num_classes)
            per_file[scene.objects] = int(np.count_nonzero(held.clipped)), int(held.num_lost)
            if held.num_objects > most:
                most, most_in = held.num_objects, str(scene.image.path)
        of_class[split] = counts.tolist()
    if not has_objects:
        return None
    clipped, lost = (sum(each[index] for each in per_file.values()) for index in (0, 1))
    return ObjectCounts(of_class, most, most_in, clipped, lost)


def most_in_window(scenes: Iterable[LabelledScene], side_px: int) -> int:
    """Return a bound of how many objects a square window of `side_px` anywhere in the scenes can show.

    With training windows of `tile_px` that is the worst case of a sample; where `scale` reads up to twice the side,
    of twice the side.
    """
    files = ObjectFiles()
    held = [files.of(scene.objects, scene.image.shrink) for scene in scenes if scene.objects is not None]
    return max((_most_in(each, side_px) for each in held), default=0)


def _most_in(held: HeldObjects, side_px: int) -> int:
    """Count, for each place of a window's corner, the objects it would touch; cells of corners, rounded outward.

    A window of side s whose corner is at row r touches an object of rows [a, b) where a - s < r < b. So each object
    is a box of corners, and the answer is how deep such boxes lie on each other.
    """
    windows: NDArray[np.int64] = held.windows[held.class_ids >= 0].astype(np.int64)
    if not len(windows):
        return 0
    firsts = (windows[:, :2] - side_px + 1) // _CELL_PX
    ends = (windows[:, :2] + windows[:, 2:] - 1) // _CELL_PX + 1
    low = firsts.min(axis=0)
    depth = np.zeros(ends.max(axis=0) - low + 1, np.int32)
    (top, left), (bottom, right) = (firsts - low).T, (ends - low).T
    for rows, cols, sign in ((top, left, 1), (bottom, right, 1), (top, right, -1), (bottom, left, -1)):
        np.add.at(depth, (rows, cols), sign)
    return int(depth.cumsum(axis=0).cumsum(axis=1).max())
