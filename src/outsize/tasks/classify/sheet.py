"""Pictures for a look: many small ones side by side with what was found in them, and a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outsize.data.pictures import Pictures
from outsize.files.ownership import MADE_BY
from outsize.runs import write_beside
from outsize.tasks.pictures import stretch

if TYPE_CHECKING:
    from PIL import Image

MOST_SHOWN = 120
_COLS, _CELL_PX, _TEXT_PX, _GAP_PX = 12, 84, 16, 8
_INK, _WRONG, _PALE, _FULL = (29, 39, 48), (190, 40, 40), np.array((246, 249, 251)), np.array((11, 110, 143))


@dataclass(frozen=True)
class Shown:
    """One picture of a sheet."""

    index: int  # among the pictures
    text: str
    is_wrong: bool = False


def draw_sheet(
    path: Path, pictures: Pictures, shown: Sequence[Shown], bands: Sequence[str], title: str
) -> None:
    """Write a PNG of pictures, row by row, each with its text below."""
    from PIL import Image

    cols = min(_COLS, max(1, len(shown)))
    rows = -(-len(shown) // cols)
    step_px = _CELL_PX + _GAP_PX
    size = (max(360, cols * step_px + _GAP_PX), 28 + rows * (step_px + _TEXT_PX) + _GAP_PX)
    page = Image.new("RGB", size, "white")
    _write(page, (_GAP_PX, 6), title, 14)
    for number, each in enumerate(shown):
        row, col = divmod(number, cols)
        top, left = 28 + row * (step_px + _TEXT_PX), _GAP_PX + col * step_px
        page.paste(_small(pictures, each.index, bands), (left, top))
        _write(page, (left, top + _CELL_PX + 1), each.text, 12, _WRONG if each.is_wrong else _INK)
    _save(page, path)


def draw_confusion(path: Path, names: Sequence[str], counts: NDArray[np.int64], title: str) -> None:
    """Write a PNG of a confusion matrix: a row for each true class, shaded by its share of the row."""
    from PIL import Image, ImageDraw

    num, cell_px = len(names), 46 if len(names) <= 20 else 18
    left, top = 16 + 8 * min(16, max(map(len, names))), 70
    page = Image.new("RGB", (max(380, left + num * cell_px + 16), top + num * cell_px + 16), "white")
    draw = ImageDraw.Draw(page)
    _write(page, (8, 8), title, 15)
    _write(page, (left, 32), "taken for", 12)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for row, name in enumerate(names):
        _write(page, (8, top + row * cell_px + cell_px // 2 - 8), name[:16], 12)
        _write(page, (left + row * cell_px + 4, 52), name[: max(2, cell_px // 8)], 12)
        for col in range(num):
            x, y = left + col * cell_px, top + row * cell_px
            # the root: a hundredth is to be seen, too
            shade = float(shares[row, col]) ** 0.5
            colour = tuple(int(each) for each in np.rint(_PALE + (_FULL - _PALE) * shade))
            draw.rectangle((x, y, x + cell_px - 2, y + cell_px - 2), fill=colour)
            if counts[row, col] and cell_px > 20:
                ink = (255, 255, 255) if shade > 0.55 else _INK
                _write(page, (x + 4, y + cell_px // 2 - 8), f"{counts[row, col]}", 12, ink)
    _save(page, path)


def _small(pictures: Pictures, index: int, bands: Sequence[str]) -> Image.Image:
    from PIL import Image

    sample = pictures.read(index)
    seen = np.round(stretch(sample.image, sample.valid, bands) * 255).astype(np.uint8)
    height, width = seen.shape[:2]
    scale = _CELL_PX / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    kept = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    return Image.fromarray(seen).resize(size, kept)


def _write(
    page: Image.Image, place: tuple[int, int], text: str, size_px: int, colour: tuple[int, int, int] = _INK
) -> None:
    from PIL import ImageDraw, ImageFont

    ImageDraw.Draw(page).text(place, text, fill=colour, font=ImageFont.load_default(size=size_px))


def _save(page: Image.Image, path: Path) -> None:
    from PIL import PngImagePlugin

    about = PngImagePlugin.PngInfo()
    about.add_text("Software", MADE_BY)
    with write_beside(path) as temporary:
        page.save(temporary, format="png", pnginfo=about)
