"""Pictures inside the page: files become data addresses, strips of panels are cut into single pictures."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path

from outsize.report.markup import Markup, tag

PANELS = ("input", "truth", "prediction", "error")
_GAP_PX = 8  # white between the panels of a strip


def embed_strip(path: Path, about: str) -> Markup | None:
    """Return the panels of a strip as pictures of their own, which fit a phone; None where the file is gone."""
    from PIL import Image

    if not path.is_file():
        return None
    figures = []
    with Image.open(path) as strip:
        width = (strip.width - _GAP_PX * (len(PANELS) - 1)) // len(PANELS)
        for number, name in enumerate(PANELS):
            left = number * (width + _GAP_PX)
            panel = strip.crop((left, 0, left + width, strip.height))
            picture = tag(
                "img", src=_address(panel), alt=f"{name} of {about}", width=width, height=strip.height
            )
            figures.append(tag("figure", picture, tag("figcaption", name)))
    return tag("div", figures, class_="panels")


def _address(picture: object) -> str:
    from PIL import Image

    assert isinstance(picture, Image.Image)
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
