"""Pictures of forecasts: lead by lead beside what came, a film of both, and where errors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outsize.data.frames import Levels
from outsize.files.ownership import MADE_BY
from outsize.runs import write_beside
from outsize.tasks.forecast.colours import as_colours, as_signed, as_steps, palette

if TYPE_CHECKING:
    from PIL import Image

_CELL_PX, _FILM_PX, _MAP_PX, _GAP_PX, _TEXT_PX, _SIDE_PX = 132, 300, 300, 8, 20, 96
_INK, _WHITE = 10, 11  # behind the colours of rain in the palette of a film
_FRAME_MS, _LAST_MS = 450, 1500
_MOST_LEADS = 6  # of a sheet


def draw_sheet(path: Path, rows: Mapping[str, Levels], leads: Sequence[str], title: str) -> None:
    """Write a PNG with a row of small frames for each of several sequences (lead, row, column)."""
    from PIL import Image

    num = len(leads)
    shown = np.unique(np.linspace(0, num - 1, min(num, _MOST_LEADS)).round().astype(int)).tolist()
    step_px = _CELL_PX + _GAP_PX
    size = (_SIDE_PX + len(shown) * step_px, 2 * _TEXT_PX + 12 + len(rows) * step_px)
    page = Image.new("RGB", size, "white")
    _write(page, (_GAP_PX, 4), title)
    for col, lead in enumerate(shown):
        _write(page, (_SIDE_PX + col * step_px, _TEXT_PX + 6), leads[lead])
    for row, (name, frames) in enumerate(rows.items()):
        top = 2 * _TEXT_PX + 8 + row * step_px
        _write(page, (_GAP_PX, top + _CELL_PX // 2 - 8), name)
        for col, lead in enumerate(shown):
            page.paste(_small(as_colours(frames[lead]), _CELL_PX), (_SIDE_PX + col * step_px, top))
    _save_png(page, path)


def draw_film(path: Path, panels: Mapping[str, Levels], leads: Sequence[str], title: str) -> None:
    """Write an animated GIF of sequences side by side, lead after lead; it loops."""
    from PIL import Image

    first = next(iter(panels.values()))
    height, width = (max(1, round(side * _FILM_PX / max(first.shape[1:]))) for side in first.shape[1:])
    step_px = width + _GAP_PX
    size = (len(panels) * step_px + _GAP_PX, height + 2 * _TEXT_PX + 12)
    colours = [*palette(), 29, 39, 48, 255, 255, 255]
    frames = []
    for lead, named in enumerate(leads):
        page = Image.new("P", size, _WHITE)
        page.putpalette(colours)
        _write(page, (_GAP_PX, 4), f"{title}   {named}", _INK)
        for number, (name, levels) in enumerate(panels.items()):
            left = _GAP_PX + number * step_px
            _write(page, (left, _TEXT_PX + 4), name, _INK)
            small = Image.fromarray(as_steps(levels[lead])).resize((width, height), Image.Resampling.NEAREST)
            page.paste(small, (left, 2 * _TEXT_PX + 6))
        frames.append(page)
    durations = [_FRAME_MS] * (len(frames) - 1) + [_LAST_MS]
    with write_beside(path) as temporary:
        frames[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=frames[1:],
            duration=durations,
            loop=0,
            optimize=False,
            comment=MADE_BY.encode(),
        )


def draw_errors(path: Path, maps: Mapping[str, NDArray[np.floating]], title: str) -> None:
    """Write a PNG of maps of numbers around 0, all on one scale, which the title is to say."""
    from PIL import Image

    first = next(iter(maps.values()))
    height, width = (max(1, round(side * _MAP_PX / max(first.shape))) for side in first.shape)
    most = scale_of(maps)
    size = (max(360, len(maps) * (width + _GAP_PX) + _GAP_PX), height + 2 * _TEXT_PX + 16)
    page = Image.new("RGB", size, "white")
    _write(page, (_GAP_PX, 4), f"{title}; full colour at {most:.2g}")
    for number, (name, values) in enumerate(maps.items()):
        left = _GAP_PX + number * (width + _GAP_PX)
        _write(page, (left, _TEXT_PX + 6), name)
        page.paste(_small(as_signed(values, most), max(height, width)), (left, 2 * _TEXT_PX + 8))
    _save_png(page, path)


def scale_of(maps: Mapping[str, NDArray[np.floating]]) -> float:
    """Return what is shown in full colour: what one pixel in a hundred passes."""
    return max(1e-3, *(float(np.percentile(np.abs(each), 99)) for each in maps.values()))


def _small(pixels: NDArray[np.uint8], side_px: int) -> Image.Image:
    from PIL import Image

    height, width = pixels.shape[:2]
    scale = side_px / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    kept = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    return Image.fromarray(pixels).resize(size, kept)


def _write(
    page: Image.Image, place: tuple[int, int], text: str, ink: int | tuple[int, int, int] = (29, 39, 48)
) -> None:
    from PIL import ImageDraw, ImageFont

    draw = ImageDraw.Draw(page)
    draw.fontmode = "1" if isinstance(ink, int) else "L"  # colours of a palette do not mix
    draw.text(place, text, fill=ink, font=ImageFont.load_default(size=13))


def _save_png(page: Image.Image, path: Path) -> None:
    from PIL import PngImagePlugin

    about = PngImagePlugin.PngInfo()
    about.add_text("Software", MADE_BY)
    with write_beside(path) as temporary:
        page.save(temporary, format="png", pnginfo=about)
