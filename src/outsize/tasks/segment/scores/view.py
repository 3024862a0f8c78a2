"""What is to be seen at one place: the picture, the true classes and those predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outsize.data.sample import IGNORE
from outsize.data.scenes import LabelledScene, read_labels
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneReader, describe
from outsize.tasks.pictures import stretch
from outsize.tasks.subjects import counted_pixels
from outsize.tiles.window import Window

View = tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint8]]


def view_window(
    scene: LabelledScene,
    map_path: Path,
    window: Window,
    table: NDArray[np.uint8],
    *,
    bands: Sequence[str] = (),
    inside: AreaOfInterest | None = None,
) -> View:
    """Read a window as picture, true and predicted class indices; what is not scored is IGNORE in the truth."""
    with (
        SceneReader(scene.image) as images,
        SceneReader(scene.labels) as labels,
        SceneReader(describe(map_path)) as maps,
    ):
        raster = images.read(window)
        truth = read_labels(labels, window, table)
        predicted = read_labels(maps, window, table)
    counted = counted_pixels(window, scene.areas, inside)
    if counted is not None:
        truth = np.where(counted, truth, np.uint8(IGNORE))
    return stretch(raster.pixels, raster.valid, bands or scene.image.band_names), truth, predicted
