"""Curves as SVG, written by hand: no script, sharp at any width.

y ^  frame of 520 x 260 units, scaled by the page to the width there is
  |      .-'
  |  _.-'
  +----------> x
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outsize.report.markup import Markup, tag

WIDTH, HEIGHT = 520.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 80.0, 24.0, 14.0, 46.0
ACCENT = "#0b6e8f"
# told apart by all eyes, also without red or green (Okabe and Ito, 2008; a test looks as such eyes do)
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00", "#cc79a7")


@dataclass(frozen=True)
class Curve:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    faint: bool = False


@dataclass(frozen=True)
class Axis:
    """One direction of a chart: what it shows, and its ends where they are fixed."""

    title: str
    low: float | None = None
    high: float | None = None
    whole: bool = False  # there is nothing between two whole numbers


def draw_curves(x_axis: Axis, y_axis: Axis, curves: Sequence[Curve]) -> Markup:
    """Return a chart of curves; several get a legend."""
    curves = [Curve(each.name, _finite(each.points), each.faint) for each in curves]
    xs = ticks(x_axis, [x for each in curves for x, _ in each.points])
    ys = ticks(y_axis, [y for each in curves for _, y in each.points])
    parts = frame(x_axis, y_axis, xs, ys)
    for number, each in enumerate(curves):
        line = " ".join(f"{_place_x(x, xs):.1f},{_place_y(y, ys):.1f}" for x, y in each.points)
        colour = ACCENT if each.faint else _COLOURS[number % len(_COLOURS)]
        if len(each.points) == 1:
            (x, y) = each.points[0]
            parts.append(tag("circle", cx=_place_x(x, xs), cy=_place_y(y, ys), r=4, fill=colour))
        opacity = 0.35 if each.faint else None
        parts.append(
            tag("polyline", points=line, fill="none", stroke=colour, stroke_width=2.2, opacity=opacity)
        )
    chart = svg(parts, f"{y_axis.title} over {x_axis.title}")
    names = [each for each in curves if not each.faint]
    return tag("figure", chart, legend([each.name for each in names]) if len(names) > 1 else None)


def draw_epochs(title: str, curves: Sequence[Curve]) -> Markup:
    """Return a chart of scores over epochs; single ones are seen on the scale that scores have."""
    alone = all(len(each.points) < 2 for each in curves)
    y_axis = Axis(title, 0.0, 1.0) if alone else Axis(title)
    return draw_curves(Axis("epoch", whole=True), y_axis, curves)


def legend(names: Sequence[str]) -> Markup:
    """Return the names of curves with their colours."""
    entries = [
        tag("li", tag("span", style=f"background:{_COLOURS[number % len(_COLOURS)]}"), name)
        for number, name in enumerate(names)
    ]
    return tag("ul", entries, class_="legend")


def draw_reliability(bins: Sequence[dict[str, float]]) -> Markup:
    """Return accuracy over confidence: bars on the diagonal are believed rightly."""
    axes = Axis("confidence", 0, 1), Axis("accuracy", 0, 1)
    ticks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    parts = frame(*axes, ticks, ticks)
    for each in bins:
        left, right = _place_x(each["from"], ticks), _place_x(each["to"], ticks)
        top, expected = _place_y(each["accuracy"], ticks), _place_y(each["confidence"], ticks)
        shown = {"x": round(left + 1, 1), "width": round(right - left - 2, 1)}
        bottom = _place_y(0, ticks)
        parts.append(
            tag("rect", y=round(top, 1), height=round(bottom - top, 1), fill=ACCENT, opacity=0.75, **shown)
        )
        parts.append(
            tag(
                "line",
                x1=round(left + 1, 1),
                x2=round(right - 1, 1),
                y1=round(expected, 1),
                y2=round(expected, 1),
                stroke="#d9822b",
                stroke_width=3,
            )
        )
    ends = {"x1": _place_x(0, ticks), "x2": _place_x(1, ticks)}
    dashes = {"stroke": "#667", "stroke_dasharray": "5 5"}
    parts.append(tag("line", y1=_place_y(0, ticks), y2=_place_y(1, ticks), **ends, **dashes))
    return tag("figure", svg(parts, "accuracy over confidence"), legend(["accuracy", "mean confidence"]))


def frame(x_axis: Axis, y_axis: Axis, xs: Sequence[float], ys: Sequence[float]) -> list[Markup]:
    """Return grid, ticks and titles."""
    parts = []
    for value in ys:
        at = round(_place_y(value, ys), 1)
        parts.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at, stroke="#e3e6ea"))
        parts.append(tag("text", number(value), x=_LEFT - 8, y=at + 4, text_anchor="end"))
    for value in xs:
        at = round(_place_x(value, xs), 1)
        parts.append(tag("text", number(value), x=at, y=HEIGHT - _BOTTOM + 18, text_anchor="middle"))
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(tag("text", x_axis.title, x=middle, y=HEIGHT - 5, text_anchor="middle"))
    turned = f"rotate(-90 13 {(HEIGHT - _BOTTOM + _TOP) / 2})"
    parts.append(
        tag(
            "text",
            y_axis.title,
            x=13,
            y=(HEIGHT - _BOTTOM + _TOP) / 2,
            text_anchor="middle",
            transform=turned,
        )
    )
    return parts


def svg(parts: Sequence[Markup], label: str) -> Markup:
    """Wrap parts in a picture that scales with the page."""
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    return tag("svg", parts, viewBox=box, role="img", aria_label=label)


def number(value: float) -> str:
    """Write a tick as short as it is exact."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return f"{value:.2g}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a running mean, longer for more points, and without the pull towards 0 at the start."""
    share = min(0.9, 1 - 10 / (len(points) + 10))
    kept: list[tuple[float, float]] = []
    mean = weight = 0.0
    for x, y in points:
        mean, weight = share * mean + (1 - share) * y, share * weight + (1 - share)
        kept.append((x, mean / weight))
    return kept


def ticks(axis: Axis, values: Sequence[float]) -> list[float]:
    """Return round numbers from below the least to above the largest."""
    low = min(values, default=0.0) if axis.low is None else axis.low
    high = max(values, default=1.0) if axis.high is None else axis.high
    if high <= low and axis.whole:
        low, high = low - 1, low + 1
    elif high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    step = max(1.0, math.ceil(step)) if axis.whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def place(point: tuple[float, float], xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return where a point is drawn between the ticks of a frame."""
    return round(_place_x(point[0], xs), 1), round(_place_y(point[1], ys), 1)


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _place_x(value: float, ticks: Sequence[float]) -> float:
    return _LEFT + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (WIDTH - _LEFT - _RIGHT)


def _place_y(value: float, ticks: Sequence[float]) -> float:
    return HEIGHT - _BOTTOM - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (HEIGHT - _BOTTOM - _TOP)
