"""A picture of a scene with the outlines of its objects, for a look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.objects import Object, crop
from outsize.raster.read import SceneInfo, SceneReader
from outsize.runs import write_beside
from outsize.tasks.draw import GAP_PX, Colour, stretch
from outsize.tiles.window import Window, middle_window

SIDE_PX = 1536  # of the part of a large scene that is shown


def draw_objects(
    path: Path,
    info: SceneInfo,
    objects: Sequence[Sequence[Object]],
    colours: Sequence[Colour],
    *,
    bands: Sequence[str] = (),
    window: Window | None = None,
) -> None:
    """Write a PNG of the middle of a scene, once for each list of objects: found, or true and found side by side."""
    from PIL import Image

    place = window or middle_window(info.height, info.width, SIDE_PX)
    with SceneReader(info) as reader:
        raster = reader.read(place)
    seen = np.round(stretch(raster.pixels, raster.valid, bands or info.band_names) * 255).astype(np.uint8)
    panels: list[NDArray[Any]] = []
    for each in objects:
        panels += [
            outlined(seen, crop(each, place), colours),
            np.full((place.height, GAP_PX, 3), 255, np.uint8),
        ]
    with write_beside(path) as temporary:
        Image.fromarray(np.concatenate(panels[:-1], axis=1)).save(temporary, format="png", compress_level=3)


def outlined(
    picture: NDArray[np.uint8], objects: Sequence[Object], colours: Sequence[Colour]
) -> NDArray[np.uint8]:
    """Paint the border pixels of each object over a copy of a picture (row, column, 3), in its class's colour."""
    from scipy import ndimage

    painted = picture.copy()
    for each in objects:
        # the border of the picture ends an object there too
        border = each.mask & ~ndimage.binary_erosion(each.mask)
        painted[each.window.slices][border] = colours[each.class_id]
    return painted
