"""Pictures inside the page: files become data addresses, strips of panels are cut into single pictures."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import RunError, explain
from outsize.report.markup import Markup, tag
from outsize.tasks.segment.wrong import Colour

if TYPE_CHECKING:
    from PIL.Image import Image

PANELS = ("input", "truth", "prediction", "error")
PANELS_AT = (
    "panels"  # where a PNG says in which row panels begin and how high they are, if it has more than panels
)
_GAP_PX = 8  # white between the panels of a strip
_PALE_FROM = 140  # the place behind its errors is lighter


def embed_strip(path: Path, about: str, wrong: Colour) -> Markup | None:
    """Return the panels of a strip as pictures of their own, which fit a phone; None where the file is gone.

    What is wrong gets the colour `wrong`, whatever it was drawn in.
    """
    if not path.is_file():
        return None
    strip = _read(path)
    top, height = map(int, str(strip.info.get(PANELS_AT, f"0 {strip.height}")).split())
    top, height = min(max(0, top), strip.height), min(max(1, height), strip.height)
    width = max(1, (strip.width - _GAP_PX * (len(PANELS) - 1)) // len(PANELS))
    figures = []
    for number, name in enumerate(PANELS):
        left = number * (width + _GAP_PX)
        panel = strip.crop((left, top, left + width, top + height)).convert("RGB")
        panel = repaint(panel, wrong) if name == "error" else panel
        picture = tag("img", src=_address(panel), alt=f"{name} of {about}", width=width, height=height)
        figures.append(tag("figure", picture, tag("figcaption", name)))
    return tag("div", figures, class_="panels")


def _read(path: Path) -> Image:
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG",)) as strip:
            strip.load()
            return strip
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        remedy = "run `outsize evaluate` again"
        raise RunError(explain(f"{path} cannot be read", error, "a strip of pictures", remedy)) from error


def repaint(panel: Image, wrong: Colour) -> Image:
    """Give one colour to all that is not the pale grey of the place: it is vivid, or dark."""
    import numpy as np
    from PIL import Image

    pixels = np.array(panel)
    vivid = (pixels != pixels[..., :1]).any(axis=-1)
    pixels[vivid | (pixels.max(axis=-1) < _PALE_FROM)] = wrong
    return Image.fromarray(pixels)


def _address(picture: Image) -> str:
    buffer = BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
