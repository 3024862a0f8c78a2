"""Pictures of a segmentation: input, truth, prediction and error side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outsize.runs import write_beside
from outsize.tasks.pictures import GAP_PX, Colour
from outsize.tasks.segment.strips import PANELS, PANELS_AT
from outsize.tasks.segment.wrong import wrong_colour

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_LINE_PX = 18  # of names above and below the panels


def draw_triptych(
    path: Path,
    image: NDArray[Any],
    truth: NDArray[np.uint8],
    predicted: NDArray[np.uint8],
    classes: Sequence[tuple[str, Colour]],
    *,
    title: str,
) -> None:
    """Write a PNG of a scene's window (rows, columns, 3 as 0..1), its class indices, and those predicted."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    height, width = truth.shape
    figure = Figure(figsize=(15, 5.6 * height / width + 0.9), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = (
        ("input", image),
        ("truth", colourise(truth, classes)),
        ("prediction", colourise(predicted, classes)),
    )
    for axes, (name, picture) in zip(figure.subplots(1, 3), panels, strict=True):
        axes.imshow(picture, interpolation="nearest")
        axes.set_title(name)
        axes.set_axis_off()
    patches = [Patch(color="#{:02x}{:02x}{:02x}".format(*colour), label=name) for name, colour in classes]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    figure.suptitle(title)
    with write_beside(path) as temporary:
        figure.savefig(temporary, format="png")


def draw_place(
    path: Path,
    image: NDArray[Any],
    truth: NDArray[np.uint8],
    predicted: NDArray[np.uint8],
    classes: Sequence[tuple[str, Colour]],
) -> None:
    """Write input, truth, prediction and error of one place as a strip of four panels, pixel for pixel, with names."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    wrong = wrong_colour([colour for _, colour in classes])
    seen = np.round(image * 255).astype(np.uint8)
    panels = (
        seen,
        colourise(truth, classes),
        colourise(predicted, classes),
        mark_errors(image, truth, predicted, len(classes), wrong),
    )
    gap = np.full((truth.shape[0], GAP_PX, 3), 255, np.uint8)
    strip = [part for panel in panels for part in (panel, gap)][:-1]
    named = _with_names(Image.fromarray(np.concatenate(strip, axis=1)), [*classes, ("wrong", wrong)])
    facts = PngInfo()
    facts.add_text(PANELS_AT, f"{_LINE_PX} {truth.shape[0]}")  # for who takes the panels apart
    with write_beside(path) as temporary:
        named.save(temporary, format="png", optimize=True, pnginfo=facts)


def _with_names(strip: Picture, entries: Sequence[tuple[str, Colour]]) -> Picture:
    """Put the panels' names above a strip, and what colours mean below, in as many lines as it takes."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(11)
    places: list[tuple[int, int]] = []
    x, line = 2, 0
    for name, _ in entries:
        width = 16 + round(font.getlength(name)) + 12
        if x > 2 and x + width > strip.width:
            x, line = 2, line + 1
        places.append((x, line))
        x += width
    top = _LINE_PX + strip.height
    whole = Image.new("RGB", (strip.width, top + 4 + (line + 1) * _LINE_PX), (255, 255, 255))
    whole.paste(strip, (0, _LINE_PX))
    draw = ImageDraw.Draw(whole)
    step = (strip.width + GAP_PX) / len(PANELS)
    for number, name in enumerate(PANELS):
        draw.text((number * step + 2, 2), name, (60, 60, 60), font)
    for (name, colour), (left, number) in zip(entries, places, strict=True):
        y = top + 6 + number * _LINE_PX
        draw.rectangle((left, y, left + 10, y + 10), colour, (120, 120, 120))
        draw.text((left + 16, y - 2), name, (60, 60, 60), font)
    return whole


def mark_errors(
    image: NDArray[Any],
    truth: NDArray[np.uint8],
    predicted: NDArray[np.uint8],
    num_classes: int,
    wrong: Colour,
) -> NDArray[np.uint8]:
    """Paint what is wrong over a pale picture of the place; what is not scored is white."""
    grey = 255 - np.round((1 - image.mean(axis=-1, keepdims=True)) * 110)
    picture = np.repeat(grey, 3, axis=-1).astype(np.uint8)
    scored = (truth < num_classes) & (predicted < num_classes)
    picture[scored & (truth != predicted)] = wrong
    picture[~scored] = 255
    return picture


def colourise(indices: NDArray[np.uint8], classes: Sequence[tuple[str, Colour]]) -> NDArray[np.uint8]:
    """Give each class its colour; everything else is white."""
    palette = np.full((256, 3), 255, np.uint8)
    palette[: len(classes)] = [colour for _, colour in classes]
    return palette[indices]
