"""Peak memory against step time as a picture: other ways as points with names, ours as a line through its budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.runs import write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Tree = dict[str, Any]
_OURS, _OTHERS, _SOFT, _PALE = "#0b6e8f", "#d9822b", "#5b6772", "#eef1f4"
_FAILED = "#a4161a"
_TALL = 2.5  # times the fastest: a way that takes longer is drawn at the upper edge, its time beside its name
# where a name may stand around its point, in points; the first place that is free is taken
_PLACES = [(9, -4), (9, 8), (9, -15), (-9, -4), (-9, 8), (-9, -15), (0, 14), (0, -22), (18, 22), (18, -30)]
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True)
class _Point:
    x: float
    y: float
    name: str
    is_ours: bool
    is_above: bool  # of the picture


def draw_memory(path: Path, measured: Tree, *, title: str) -> None:
    """Write memory.json of `bench memory` as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, pad=20)  # above the names of budgets
    points = _draw_axes(axes, measured)
    axes.legend(loc="best", frameon=False)
    _write_names(axes, points)
    with write_beside(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_axes(axes: Axes, measured: Tree) -> list[_Point]:
    """Draw all but the names of points, and return these."""
    shown = [each for each in measured["rows"] if _is_drawn(each)]
    largest_bytes = max((each["peak_bytes"] for each in shown), default=1)
    unit, unit_bytes = next((each for each in _UNITS if largest_bytes >= each[1]), _UNITS[-1])
    points = _points(shown, unit_bytes)
    axes.set_xlabel(f"peak of allocated memory, {unit}")
    axes.set_ylabel("time of a step, ms")
    axes.grid(color="#e3e6ea", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, 1.18 * largest_bytes / unit_bytes)
    # from 0, lest a little more time looks like many times as much; and room above for the legend
    axes.set_ylim(0, 1.25 * max((each.y for each in points), default=1.0))
    _draw_budgets(axes, measured["rows"], unit_bytes)
    _draw_points(axes, points)
    resident = measured["resident_bytes"] / unit_bytes
    axes.axvspan(0, resident, color=_PALE, zorder=0, label="stays between steps")
    return points


def _is_drawn(row: Tree) -> bool:
    return row["failed"] is None and bool(row["ms"]) and bool(row["peak_bytes"])


def _points(rows: Sequence[Tree], unit_bytes: int) -> list[_Point]:
    least_ms = min((each["ms"] for each in rows), default=1.0)
    highest_ms = max((each["ms"] for each in rows if each["ms"] <= _TALL * least_ms), default=1.0)
    edge_ms = 1.15 * highest_ms
    points = []
    for each in rows:
        is_above = each["ms"] > highest_ms
        name = each["label"] + (f": {each['ms']:.0f} ms" if is_above else "")
        height = edge_ms if is_above else each["ms"]
        points.append(_Point(each["peak_bytes"] / unit_bytes, height, name, "share" in each, is_above))
    return points


def _draw_budgets(axes: Axes, rows: Sequence[Tree], unit_bytes: int) -> None:
    """Draw a line at each budget; a cross below its name where nothing runs within it."""
    upper = axes.get_xaxis_transform()
    failed = []
    for row in (each for each in rows if each.get("budget_bytes")):
        at, runs = row["budget_bytes"] / unit_bytes, row["failed"] is None
        colour = _OURS if runs else _FAILED
        axes.axvline(at, color=colour, linewidth=1, linestyle=":", zorder=1)
        name = row["label"].removeprefix("ours, ")
        axes.text(at, 1.0, name, transform=upper, color=colour, fontsize=8, ha="center", va="bottom")
        failed += [] if runs else [at]
    if failed:
        heights, name = [0.97] * len(failed), "budgets within which it does not run"
        axes.scatter(failed, heights, s=60, color=_FAILED, marker="x", zorder=3, transform=upper, label=name)


def _draw_points(axes: Axes, points: Sequence[_Point]) -> None:
    line = _line(points)
    if line:
        xs, ys = zip(*line, strict=True)
        name = "ours, within budgets (dotted)"
        axes.plot(xs, ys, color=_OURS, linewidth=2, marker="o", markersize=7, zorder=4, label=name)
    for is_above, mark in ((False, "o"), (True, "^")):
        chosen = [(each.x, each.y) for each in points if each.is_above == is_above and not each.is_ours]
        if chosen:
            xs, ys = zip(*chosen, strict=True)
            name = "other ways, slower than is shown" if is_above else "other ways"
            axes.scatter(xs, ys, s=42, color=_OTHERS, marker=mark, zorder=3, label=name)


def _line(points: Sequence[_Point]) -> list[tuple[float, float]]:
    return sorted((each.x, each.y) for each in points if each.is_ours)


def _write_names(axes: Axes, points: Sequence[_Point]) -> None:
    """Write the name of each point beside it, where it covers no other name, no other point and not the line."""
    figure = axes.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]
    taken = _boxes(axes, [(each.x, each.y) for each in points], 10) + _boxes(axes, _along(_line(points)), 3)
    for point in sorted(points, key=lambda each: -each.x):
        best: tuple[int, Annotation] | None = None
        for place in _PLACES:
            name = _name(axes, point, place)
            extent = name.get_window_extent()
            covered = sum(extent.overlaps(each) for each in taken) + (not axes.bbox.contains(*extent.max))
            if best is not None and covered >= best[0]:
                name.remove()
                continue
            if best is not None:
                best[1].remove()
            best = covered, name
            if not covered:
                break
        assert best is not None
        taken.append(best[1].get_window_extent())


def _boxes(axes: Axes, places: Sequence[tuple[float, float]], side_px: int) -> list[Bbox]:
    from matplotlib.transforms import Bbox

    half = side_px / 2
    found = [axes.transData.transform(each) for each in places]
    return [Bbox.from_bounds(x - half, y - half, side_px, side_px) for x, y in found]


def _along(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return many places on a line."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(line):
        shares = [number / 24 for number in range(25)]
        found += [(x0 + share * (x1 - x0), y0 + share * (y1 - y0)) for share in shares]
    return found


def _name(axes: Axes, point: _Point, place: tuple[int, int]) -> Annotation:
    side = "left" if place[0] > 0 else "right" if place[0] < 0 else "center"
    colour = _OURS if point.is_ours else _SOFT
    far = max(map(abs, place)) > 16
    return axes.annotate(
        point.name,
        (point.x, point.y),
        xytext=place,
        textcoords="offset points",
        ha=side,
        color=colour,
        fontsize=8.5,
        zorder=5,
        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5},
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6} if far else None,
    )
