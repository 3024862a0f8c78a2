"""Which classes are where: pixels of each class in every block of the labels, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outsize.data.feeding import prefetch
from outsize.data.sample import IGNORE
from outsize.data.scenes import LabelledScene, read_labels
from outsize.errors import DataError, explain
from outsize.progress import Bar
from outsize.raster.reading import SceneReader
from outsize.tiles.window import Window
from outsize.units import Size, num_px_of

_READ_PX = 1024


@dataclass(frozen=True)
class BlockIndex:
    """Pixels of each class in the blocks of a set of scenes; blocks without a label are left out."""

    areas: NDArray[np.int32]  # block: number of its area, counted through all scenes
    windows: NDArray[np.int32]  # block; row, col, height, width
    num_px: NDArray[np.int32]  # block, class
    of_scenes: NDArray[np.int64]  # scene, class


def areas_of(scene: LabelledScene) -> tuple[Window, ...]:
    """Return the parts of a scene that belong to the split; all of it where none are named."""
    return scene.areas or (scene.image.window,)


def samples_per_cover(scenes: Sequence[LabelledScene], tile_px: Size) -> int:
    """Count the windows that cover scenes once, or whole pictures with one class each."""
    num_px, num_pictures = 0, 0
    for scene in scenes:
        own_px = sum(area.num_px for area in areas_of(scene))
        if scene.picture_px is None:
            num_px += own_px
        else:
            num_pictures += own_px // num_px_of(scene.picture_px)
    return max(1, num_pictures + round(num_px / num_px_of(tile_px)))


def index_blocks(
    scenes: Sequence[LabelledScene],
    table: NDArray[np.uint8],
    num_classes: int,
    *,
    block_px: int,
    num_threads: int,
    bar: Bar | None = None,
) -> BlockIndex:
    """Read the labels of all areas once and count the classes in each block of at most `block_px` a side."""
    areas: list[NDArray[np.int32]] = []
    windows: list[NDArray[np.int32]] = []
    counts: list[NDArray[np.int32]] = []
    of_scenes = np.zeros((len(scenes), num_classes), np.int64)
    num_areas = 0
    for number, scene in enumerate(scenes):
        for area in areas_of(scene):
            for places, num_px in _count_area(scene, area, table, num_classes, block_px, num_threads):
                labelled = num_px.any(1)
                areas.append(np.full(np.count_nonzero(labelled), num_areas, np.int32))
                windows.append(places[labelled])
                counts.append(num_px[labelled])
                of_scenes[number] += num_px.sum(0)
            num_areas += 1
        if bar is not None:
            bar.advance()
    if not of_scenes.any():
        need, remedy = "labels to train on", "check data.labels, data.classes and data.ignore_value"
        raise DataError(explain(f"no pixel is labelled in {scenes[0].labels.path}", "none", need, remedy))
    return BlockIndex(np.concatenate(areas), np.concatenate(windows), np.concatenate(counts), of_scenes)


def count_blocks(labels: NDArray[np.uint8], num_classes: int, block_px: int) -> NDArray[np.int32]:
    """Count the classes in each block of an array of labels, row by row of blocks: (block, class)."""
    rows, cols = (-(-length // block_px) for length in labels.shape)
    fill = ((0, rows * block_px - labels.shape[0]), (0, cols * block_px - labels.shape[1]))
    whole = np.pad(labels, fill, constant_values=IGNORE).reshape(rows, block_px, cols, block_px)
    numbers = np.arange(rows * cols).reshape(rows, 1, cols, 1) * (IGNORE + 1)
    found = np.bincount((whole + numbers).ravel(), minlength=rows * cols * (IGNORE + 1))
    return found.reshape(rows * cols, IGNORE + 1)[:, :num_classes].astype(np.int32)


def _count_area(
    scene: LabelledScene,
    area: Window,
    table: NDArray[np.uint8],
    num_classes: int,
    block_px: int,
    num_threads: int,
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    step_px = max(1, _READ_PX // block_px) * block_px
    parts = [
        Window(row, col, step_px, step_px).intersect(area)
        for row in range(area.row, area.row_end, step_px)
        for col in range(area.col, area.col_end, step_px)
    ]
    with SceneReader(scene.labels) as reader:

        def count(index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
            labels = read_labels(reader, parts[index], table)
            return _places(parts[index], block_px), count_blocks(labels, num_classes, block_px)

        yield from prefetch(count, range(len(parts)), num_threads=num_threads, num_ahead=4)


def _places(part: Window, block_px: int) -> NDArray[np.int32]:
    blocks = [
        Window(row, col, block_px, block_px).intersect(part)
        for row in range(part.row, part.row_end, block_px)
        for col in range(part.col, part.col_end, block_px)
    ]
    return np.array([(each.row, each.col, each.height, each.width) for each in blocks], np.int32)
