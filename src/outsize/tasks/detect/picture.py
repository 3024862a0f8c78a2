"""Boxes drawn over a scene, for a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from outsize.files.ownership import MADE_BY
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.runs import write_beside
from outsize.tasks.detect.settle import FoundBoxes
from outsize.tasks.pictures import GAP_PX, Colour, stretch
from outsize.tiles.window import Window, middle_window

SIDE_PX = 1536  # of the part of a large scene that is shown
_TITLE_PX, _SWATCH_PX, _LINE_PX = 28, 12, 2


def draw_boxes(
    path: Path,
    info: SceneInfo,
    panels: Mapping[str, FoundBoxes],
    classes: Sequence[tuple[str, Colour]],
    *,
    bands: Sequence[str] = (),
) -> None:
    """Write a PNG of a scene, or of the middle of its boxes, once below the other for each list under its title.

    The title is followed by the colour, number and name of the classes that are shown.
    """
    from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

    about = PngImagePlugin.PngInfo()
    about.add_text("Software", MADE_BY)
    place = _place(list(panels.values()), info)
    with SceneReader(info) as reader:
        raster = reader.read(place)
    seen = np.round(stretch(raster.pixels, raster.valid, bands or info.band_names) * 255).astype(np.uint8)
    step_px = place.height + _TITLE_PX + GAP_PX
    page = Image.new("RGB", (place.width, step_px * len(panels) - GAP_PX), "white")
    brush, font = ImageDraw.Draw(page), ImageFont.load_default(size=16)
    for number, (title, boxes) in enumerate(panels.items()):
        top = number * step_px + _TITLE_PX
        page.paste(Image.fromarray(seen), (0, top))
        at_px, middle_px = 4.0, top - _TITLE_PX / 2
        for text, colour in (title, None), *_legend(boxes, classes):
            if colour is not None:
                brush.rectangle(
                    [at_px, middle_px - _SWATCH_PX / 2, at_px + _SWATCH_PX, middle_px + _SWATCH_PX / 2],
                    fill=colour,
                )
                at_px += _SWATCH_PX + 4
            brush.text((at_px, middle_px), text, fill="black", font=font, anchor="lm")
            at_px += font.getlength(text) + 14
        moved = boxes.sides - np.array([place.col, place.row] * 2)
        for sides, class_id in zip(
            np.round(moved).astype(int).tolist(), boxes.class_ids.tolist(), strict=True
        ):
            left, upper, right, lower = sides
            corners = [
                left,
                max(upper, 0) + top,
                max(left, right),
                min(max(lower, upper, 0), place.height) + top,
            ]
            if right > 0 and lower > 0 and left < place.width and upper < place.height:
                brush.rectangle(corners, outline=classes[class_id][1], width=_LINE_PX)
    with write_beside(path) as temporary:
        page.save(temporary, format="png", compress_level=3, pnginfo=about)


def _legend(boxes: FoundBoxes, classes: Sequence[tuple[str, Colour]]) -> list[tuple[str, Colour | None]]:
    counts = np.bincount(boxes.class_ids, minlength=len(classes)).tolist()
    return [(f"{num} {name}", colour) for num, (name, colour) in zip(counts, classes, strict=True) if num]


def _place(panels: Sequence[FoundBoxes], info: SceneInfo) -> Window:
    """Return the part of a scene that is shown, around the box that most others are near to."""
    place = middle_window(info.height, info.width, SIDE_PX)
    sides = np.concatenate([each.sides for each in panels])
    if not len(sides) or (place.height, place.width) == (info.height, info.width):
        return place
    middles = (sides[:, :2] + sides[:, 2:]) / 2
    across, down = middles[np.abs(middles - np.median(middles, 0)).sum(1).argmin()]
    row = int(np.clip(down - place.height / 2, 0, info.height - place.height))
    col = int(np.clip(across - place.width / 2, 0, info.width - place.width))
    return Window(row, col, place.height, place.width)
