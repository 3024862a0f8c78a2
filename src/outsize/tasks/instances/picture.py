"""A picture of a scene with the outlines of its objects, for a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.object import Object, crop
from outsize.files.ownership import MADE_BY
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.runs import write_beside
from outsize.tasks.pictures import GAP_PX, Colour, stretch
from outsize.tiles.window import Window, middle_window

SIDE_PX = 1536  # of the part of a large scene that is shown
_LINE_PX = 512  # of a picture's side to one of a line's width
_DARK: Colour = (0, 0, 0)  # inside of a wide line: it is seen on roofs of its own colour too
_TITLE_PX = 40  # height of a title


def draw_objects(
    path: Path,
    info: SceneInfo,
    objects: Mapping[str, Sequence[Object]],
    colours: Sequence[Colour],
    *,
    bands: Sequence[str] = (),
) -> None:
    """Write a PNG of a scene, or of a part around its objects, once for each list of them under its title."""
    from PIL import Image, PngImagePlugin

    about = PngImagePlugin.PngInfo()
    about.add_text("Software", MADE_BY)
    place = _place([each for listed in objects.values() for each in listed], info.height, info.width)
    with SceneReader(info) as reader:
        raster = reader.read(place)
    seen = np.round(stretch(raster.pixels, raster.valid, bands or info.band_names) * 255).astype(np.uint8)
    panels: list[NDArray[Any]] = []
    for title, listed in objects.items():
        shown = outlined(seen, crop(listed, place), colours)
        panels += [_titled(shown, title), np.full((place.height + _TITLE_PX, GAP_PX, 3), 255, np.uint8)]
    with write_beside(path) as temporary:
        picture = Image.fromarray(np.concatenate(panels[:-1], axis=1))
        picture.save(temporary, format="png", compress_level=3, pnginfo=about)


def outlined(
    picture: NDArray[np.uint8], objects: Sequence[Object], colours: Sequence[Colour]
) -> NDArray[np.uint8]:
    """Paint the border pixels of each object over a copy of a picture (row, column, 3), in its class's colour."""
    from scipy import ndimage

    painted = picture.copy()
    width_px = max(1, round(min(picture.shape[:2]) / _LINE_PX))
    for each in objects:
        # the border of the picture ends an object there too
        inner = ndimage.binary_erosion(each.mask, iterations=width_px)
        seen = painted[each.window.slices]
        if width_px > 1:
            seen[inner & ~ndimage.binary_erosion(inner)] = _DARK
        seen[each.mask & ~inner] = colours[each.class_id]
    return painted


def _place(objects: Sequence[Object], height: int, width: int) -> Window:
    """Return the part of a scene that is shown: all objects in the middle, or else the one that most are around."""
    place = middle_window(height, width, SIDE_PX)
    if not objects:
        return place
    windows = [each.window for each in objects]
    first = np.array([(each.row, each.col) for each in windows])
    end = np.array([(each.row_end, each.col_end) for each in windows])
    around = np.median(first + end, axis=0)
    central = np.abs(first + end - around).sum(axis=1).argmin()
    low, high, sides = first.min(axis=0), end.max(axis=0), np.array((place.height, place.width))
    # between objects that are far apart there may be nothing to see
    middle = np.where(high - low <= sides, low + high, first[central] + end[central])
    row, col = np.clip((middle - sides) // 2, 0, np.array((height, width)) - sides).tolist()
    return Window(row, col, place.height, place.width)


def _titled(picture: NDArray[np.uint8], title: str) -> NDArray[np.uint8]:
    """Put a line of text above a picture."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (picture.shape[1], picture.shape[0] + _TITLE_PX), "white")
    page.paste(Image.fromarray(picture), (0, _TITLE_PX))
    size_px = min(_TITLE_PX * 0.6, 1.6 * picture.shape[1] / max(1, len(title)))
    font = ImageFont.load_default(size=max(8.0, size_px))
    ImageDraw.Draw(page).text((4, _TITLE_PX / 2), title, fill="black", font=font, anchor="lm")
    return np.asarray(page)
