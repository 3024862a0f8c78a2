"""Looks through labels alone, no further than it must: a class that is nowhere is reported before an image is read."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.checking.checked import recall_checked, refuse_problems
from outsize.data.checking.problems import empty_class
from outsize.data.feeding import prefetch
from outsize.data.scenes import LabelledScene, classes_of, label_table
from outsize.data.split import Splits
from outsize.data.statistics import windows_of
from outsize.errors import DataError
from outsize.job import DataSection
from outsize.progress import Bar, Reporter
from outsize.raster.reading import SceneReader
from outsize.tiles.window import Window

_SURELY_PX = 2**26  # labels that are looked through in any case for values that are none: a second or two


def refuse_early(path: Path, data: DataSection, splits: Splits, reporter: Reporter, num_threads: int) -> None:
    """Refuse what data.json at `path` tells of these very files; where it tells nothing, look through some labels.

    No labels are looked through by 0 threads.
    """
    checked = recall_checked(path, data, splits)
    if checked is not None:
        refuse_problems(checked)
    elif num_threads and not data.numbers:  # of grids of numbers none is no class
        with reporter.bar("classes", len(splits.train), "scene", parallel=num_threads) as bar:
            refuse_unlearnable(data, splits, num_threads=num_threads, bar=bar)


def refuse_unlearnable(data: DataSection, splits: Splits, *, num_threads: int, bar: Bar) -> None:
    """Refuse a class without a labelled pixel to train on, and label values that are no class.

    It ends once every class was seen and a fair part of the labels: the check that reads all of the data sees the rest.
    Files that cannot be read are left to it, too.
    """
    table = label_table([each.value for each in data.classes], data.ignore_value)
    num = len(data.classes)
    seen, num_px, all_read = np.zeros(num, np.bool_), 0, True
    scenes = splits.train

    def look(index: int) -> NDArray[np.bool_] | None:
        return _classes_in(scenes[index], table, num)

    found = prefetch(look, range(len(scenes)), num_threads=num_threads, num_ahead=2 * num_threads)
    for scene, classes in zip(scenes, found, strict=True):
        bar.advance()
        if classes is None:
            all_read = False
            continue
        seen |= classes
        num_px += scene.image.num_px
        if num_px >= _SURELY_PX and seen.all():
            return
    # a dataset's classes are given: one that a part of it lacks is no mistake
    if all_read and not data.is_dataset:
        _refuse_empty([each.name for each, there in zip(data.classes, seen, strict=True) if not there])


def _refuse_empty(names: list[str]) -> None:
    if names:
        more = f" ({len(names) - 1} more: run `outsize check`)" if len(names) > 1 else ""
        raise DataError(empty_class(names[0]).text + more)


def _classes_in(scene: LabelledScene, table: NDArray[np.uint8], num: int) -> NDArray[np.bool_] | None:
    """Return which classes the areas of a scene have; None where its labels cannot be read."""
    seen = np.zeros(num, np.bool_)
    windows = windows_of(scene.image)
    parts = chain.from_iterable(
        (area.intersect(window) for area in scene.areas or (window,)) for window in windows
    )
    try:
        reader = SceneReader(scene.labels)
    except DataError:
        return None
    with reader:
        for part in parts:
            if part.num_px and not _look(reader, part, table, seen):
                return None
    return seen


def _look(reader: SceneReader, part: Window, table: NDArray[np.uint8], seen: NDArray[np.bool_]) -> bool:
    try:
        raster = reader.read(part)
    except DataError:
        return False
    classes = classes_of(reader.info, raster.pixels[0], raster.valid, table, part)
    seen |= np.bincount(classes.ravel(), minlength=256)[: len(seen)] > 0
    return True
