"""A schedule as SVG: a row for each rank, a box for what it does, and nothing where it waits.

rank 0 |0|1|2|3|     |0 |1 |2 |3 |
rank 1   |0|1|2|3| |0 |1 |2 |3 |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outsize.report.markup import Markup, tag

__all__ = ["Slice", "draw_schedule"]

_WIDTH, _LEFT, _ROW, _BOX = 760.0, 64.0, 30.0, 24.0
_COLOURS = {"forward": "#7fb3d5", "recompute": "#c9d6a3", "backward": "#0b6e8f", "weights": "#d9822b"}
_DARK = {"backward"}
_LEAST_PX = 13.0  # narrower boxes get no number


@dataclass(frozen=True)
class Slice:
    """What a rank does for a while: "forward", "recompute", "backward" or "weights", of which micro-batch."""

    rank: int
    doing: str
    micro: int
    start_s: float
    end_s: float


def draw_schedule(slices: Sequence[Slice], title: str) -> Markup:
    """Return the picture of a step, to scale; it stands by itself as a file."""
    num_ranks = 1 + max(each.rank for each in slices)
    whole_s = max(each.end_s for each in slices)
    scale = (_WIDTH - _LEFT - 4) / whole_s
    top = 26.0
    parts = [tag("text", title, x=0, y=16, font_weight="bold")]
    for rank in range(num_ranks):
        y = top + rank * _ROW
        parts.append(tag("text", f"rank {rank}", x=0, y=y + 17))
        parts.append(tag("rect", x=_LEFT, y=y, width=round(whole_s * scale, 1), height=_BOX, fill="#f0f2f4"))
    for each in slices:
        x, width = _LEFT + each.start_s * scale, (each.end_s - each.start_s) * scale
        y = top + each.rank * _ROW
        box = {"x": round(x, 1), "y": y, "width": round(max(width - 0.6, 0.4), 1), "height": _BOX}
        parts.append(tag("rect", fill=_COLOURS[each.doing], **box))
        if width >= _LEAST_PX:
            fill = "#ffffff" if each.doing in _DARK else "#1c2733"
            parts.append(
                tag(
                    "text",
                    each.micro,
                    x=round(x + width / 2, 1),
                    y=y + 17,
                    text_anchor="middle",
                    style=f"fill:{fill}",
                )
            )
    bottom = top + num_ranks * _ROW
    shown = [name for name in _COLOURS if any(each.doing == name for each in slices)]
    for number, name in enumerate(shown):
        x = _LEFT + 130 * number
        parts.append(tag("rect", x=x, y=bottom + 6, width=14, height=14, fill=_COLOURS[name]))
        parts.append(tag("text", name, x=x + 20, y=bottom + 18))
    return tag(
        "svg",
        parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {bottom + 28:g}",
        font_family="sans-serif",
        font_size=13,
        role="img",
        aria_label=title,
    )
