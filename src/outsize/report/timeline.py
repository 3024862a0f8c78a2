"""What ran when, as SVG: a row for each kind, a box for each span, to scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outsize.report.markup import Markup, tag
from outsize.units import format_seconds

_WIDTH, _LEFT, _ROW, _BOX = 760.0, 120.0, 30.0, 22.0
# told apart with any kind of colour vision (Okabe and Ito), and by their rows
_COLOURS = ("#e69f00", "#0072b2", "#009e73", "#56b4e9", "#d55e00", "#cc79a7")
_LEAST = 0.25  # units of width: closer spans of a row are drawn as one


@dataclass(frozen=True)
class Span:
    """Something that went on for a while."""

    kind: str
    start_s: float
    end_s: float


def draw_timeline(spans: Sequence[Span], title: str, *, left: float = _LEFT) -> Markup:
    """Return the picture, with room for the names of rows on the `left`; it stands by itself as a file."""
    kinds = list(dict.fromkeys(each.kind for each in spans))
    whole_s = max((each.end_s for each in spans), default=1.0) or 1.0
    scale, top = (_WIDTH - left - 8) / whole_s, 28.0
    parts = [tag("text", title, x=0, y=16, font_weight="bold")]
    for number, kind in enumerate(kinds):
        y = top + number * _ROW
        parts.append(tag("text", kind, x=0, y=y + 16))
        parts.append(tag("rect", x=left, y=y, width=round(whole_s * scale, 1), height=_BOX, fill="#f0f2f4"))
        for start, end in _drawn([each for each in spans if each.kind == kind], _LEAST / scale):
            box = {"x": round(left + start * scale, 2), "y": y, "height": _BOX}
            width = round(max((end - start) * scale, 0.4), 2)
            parts.append(tag("rect", width=width, fill=_COLOURS[number % len(_COLOURS)], **box))
    bottom = top + len(kinds) * _ROW
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = left + share * whole_s * scale
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        text = "0" if share == 0 else format_seconds(share * whole_s)
        parts.append(tag("text", text, x=round(x, 1), y=bottom + 16, text_anchor=anchor, fill="#5b6772"))
    return tag(
        "svg",
        parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {bottom + 24:g}",
        font_family="sans-serif",
        font_size=13,
        role="img",
        aria_label=title,
    )


def _drawn(spans: Sequence[Span], least_s: float) -> list[tuple[float, float]]:
    """Join spans that are too close to be seen apart: there may be thousands of kernels."""
    found: list[tuple[float, float]] = []
    for each in sorted(spans, key=lambda each: each.start_s):
        if found and each.start_s - found[-1][1] < least_s:
            found[-1] = found[-1][0], max(found[-1][1], each.end_s)
        else:
            found.append((each.start_s, each.end_s))
    return found
