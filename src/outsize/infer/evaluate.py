"""Compares class maps with label rasters, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.loader import prefetch
from outsize.data.sample import IGNORE
from outsize.data.scenes import LabelledScene, read_labels
from outsize.errors import DataError, explain
from outsize.metrics.confusion import Counts, confusion
from outsize.progress import Bar
from outsize.raster.read import SceneReader, describe
from outsize.tiles.window import Window

_SIDE_PX = 2048


def compare_map(
    map_path: Path, scene: LabelledScene, table: NDArray[np.uint8], num_classes: int, bar: Bar | None = None
) -> Counts:
    """Count (true class, predicted class) over the pixels that are labelled, valid and predicted."""
    info = describe(map_path)
    if (info.height, info.width) != (scene.labels.height, scene.labels.width):
        raise DataError(
            explain(
                f"map {map_path} does not fit the labels {scene.labels.path}",
                f"{info.height} x {info.width} px",
                f"{scene.labels.height} x {scene.labels.width} px",
                "predict that scene again",
            )
        )
    if info.dtype != "uint8" or info.num_bands != 1:
        found, need = f"{info.num_bands} bands of {info.dtype}", "one band of uint8"
        raise DataError(explain(f"{map_path} is no class map", found, need, "predict that scene again"))
    windows = list(_windows(info.height, info.width))
    total = np.zeros((num_classes, num_classes), np.int64)
    with SceneReader(info) as maps, SceneReader(scene.labels) as labels:

        def count(index: int) -> Counts:
            raster = maps.read(windows[index])
            # values outside the classes cannot come from a model of this run: left out like nodata
            predicted = np.where(raster.valid, table[raster.pixels[0]], np.uint8(IGNORE))
            return confusion(read_labels(labels, windows[index], table), predicted, num_classes)

        for counts in prefetch(count, range(len(windows)), num_threads=2, num_ahead=4):
            total += counts
            if bar is not None:
                bar.advance()
    return total


def num_windows(height: int, width: int) -> int:
    """Count the windows that compare_map reads, for a progress bar."""
    return sum(1 for _ in _windows(height, width))


def _windows(height: int, width: int) -> Iterator[Window]:
    for row in range(0, height, _SIDE_PX):
        for col in range(0, width, _SIDE_PX):
            yield Window(row, col, min(_SIDE_PX, height - row), min(_SIDE_PX, width - col))
