"""Reads scenes once to find what is wrong with them before a training begins, not in the middle of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from outsize.data.loader import prefetch
from outsize.data.scenes import LabelledScene, read_labels
from outsize.data.statistics import windows_of
from outsize.errors import DataError, explain
from outsize.progress import Bar
from outsize.raster.read import SceneInfo, SceneReader
from outsize.tiles.window import Window


def check_labels(
    scenes: Sequence[LabelledScene], table: NDArray[np.uint8], *, num_threads: int, bar: Bar
) -> None:
    """Read every label; values outside the classes are refused."""
    for scene in scenes:
        with SceneReader(scene.labels) as reader:

            def look(window: Window, reader: SceneReader = reader) -> bool:
                return read_labels(reader, window, table).size > 0

            _read(scene.labels, look, num_threads, bar)


def check_images(images: Sequence[SceneInfo], *, num_threads: int, bar: Bar) -> None:
    """Read every pixel; what cannot be read, is no number or is nodata everywhere is refused."""
    for image in images:
        with SceneReader(image) as reader:

            def look(window: Window, reader: SceneReader = reader) -> bool:
                return bool(reader.read(window).valid.any())

            has_pixels = _read(image, look, num_threads, bar)
        if not has_pixels:
            need, remedy = "some image", "leave the scene out, or correct its nodata value"
            raise DataError(explain(f"{image.path} has no valid pixel", "nodata everywhere", need, remedy))


def _read(scene: SceneInfo, look: Callable[[Window], bool], num_threads: int, bar: Bar) -> bool:
    """Look at every window and say whether one of them held something."""
    windows, found = windows_of(scene), False
    for here in prefetch(
        lambda index: look(windows[index]), range(len(windows)), num_threads=num_threads, num_ahead=4
    ):
        found |= here
        bar.advance()
    return found
