"""Peak memory against step time as a picture: plain and other ways as points with names, ours as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from outsize.report.measured import scatter_of
from outsize.runs import write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Tree = dict[str, Any]
Kind = Literal["plain", "other", "ours"]
_OURS, _OTHERS, _SOFT, _PALE = "#0b6e8f", "#d9822b", "#5b6772", "#eef1f4"
_FAILED, _PLAIN = "#a4161a", "#2f3941"
_TALL = 2.5  # times the fastest: another way that takes longer is drawn on the upper edge, its time beside its name
# where a name may stand around its point, in points; the first place that is free is taken
_PLACES = [(9, -4), (9, 8), (9, -15), (-9, -4), (-9, 8), (-9, -15), (0, 14), (0, -22), (18, 22), (18, -30)]
_PLAIN_WAYS = ("plain", "again")  # as the model is written
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True)
class _Point:
    x: float
    y: float
    name: str
    kind: Kind
    is_above: bool  # of what the axis shows


def draw_memory(path: Path, measured: Tree, *, title: str) -> None:
    """Write memory.json of `bench memory` as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots()
    points = _draw_axes(axes, measured)
    # below: inside it would lie upon points, or upon the room where they could be
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    _write_names(axes, points)
    with write_beside(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_axes(axes: Axes, measured: Tree) -> list[_Point]:
    """Draw all but the names of points, and return these."""
    shown = [each for each in measured["rows"] if _is_drawn(each)]
    largest_bytes = max((each["peak_bytes"] for each in shown), default=1)
    unit, unit_bytes = next((each for each in _UNITS if largest_bytes >= each[1]), _UNITS[-1])
    edge_ms = _edge_ms(shown)
    points = _points(shown, unit_bytes, edge_ms)
    scatter = scatter_of(measured["control"])
    axes.set_title(scatter or "", fontsize=9.5, color=_FAILED, pad=20)  # above the names of budgets
    axes.set_xlabel(f"peak of allocated memory, {unit}")
    axes.set_ylabel("time of a step, ms")
    axes.grid(color="#e3e6ea", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, 1.18 * largest_bytes / unit_bytes)
    axes.set_ylim(0, edge_ms)  # from 0, or a little more time would look like many times as much
    _draw_budgets(axes, measured["rows"], unit_bytes)
    _draw_points(axes, points)
    resident = measured["resident_bytes"] / unit_bytes
    axes.axvspan(0, resident, color=_PALE, zorder=0, label="stays between steps")
    return points


def _is_drawn(row: Tree) -> bool:
    return row["failed"] is None and bool(row["ms"]) and bool(row["peak_bytes"])


def _kind(row: Tree) -> Kind:
    return "ours" if "share" in row else "plain" if row["way"] in _PLAIN_WAYS else "other"


def _edge_ms(rows: Sequence[Tree]) -> float:
    """Return the upper end of the axis: plain and ours are always within, and other ways that are not far slower."""
    least_ms = min((each["ms"] for each in rows), default=1.0)
    within = [each["ms"] for each in rows if _kind(each) != "other" or each["ms"] <= _TALL * least_ms]
    return 1.15 * max(within, default=1.0)


def _points(rows: Sequence[Tree], unit_bytes: int, edge_ms: float) -> list[_Point]:
    points = []
    for each in rows:
        is_above = each["ms"] > edge_ms
        name = each["label"] + (f": {each['ms']:.0f} ms" if is_above else "")
        height = min(edge_ms, each["ms"])
        points.append(_Point(each["peak_bytes"] / unit_bytes, height, name, _kind(each), is_above))
    return points


def _draw_budgets(axes: Axes, rows: Sequence[Tree], unit_bytes: int) -> None:
    """Draw a line at each budget that the axis reaches; a cross below its name where ours does not run within it."""
    upper = axes.get_xaxis_transform()
    largest_bytes = axes.get_xlim()[1] * unit_bytes
    failed = []
    for row in (each for each in rows if 0 < (each.get("budget_bytes") or 0) <= largest_bytes):
        at, runs = row["budget_bytes"] / unit_bytes, row["failed"] is None
        colour = _OURS if runs else _FAILED
        axes.axvline(at, color=colour, linewidth=1, linestyle=":", zorder=1)
        name = row["label"].removeprefix("ours, ")
        axes.text(at, 1.0, name, transform=upper, color=colour, fontsize=8, ha="center", va="bottom")
        failed += [] if runs else [at]
    if failed:
        heights, name = [0.96] * len(failed), "budgets within which ours does not run"
        axes.scatter(failed, heights, s=60, color=_FAILED, marker="x", zorder=3, transform=upper, label=name)


def _draw_points(axes: Axes, points: Sequence[_Point]) -> None:
    line = _line(points)
    if line:
        xs, ys = zip(*line, strict=True)
        name = "ours, within budgets (dotted)"
        axes.plot(xs, ys, color=_OURS, linewidth=2, marker="o", markersize=7, zorder=4, label=name)
    series = (
        ("plain", [each for each in points if each.kind == "plain"], _PLAIN, "s"),
        ("other ways", [each for each in points if each.kind == "other" and not each.is_above], _OTHERS, "o"),
        ("other ways, slower than the axis shows", [each for each in points if each.is_above], _OTHERS, "^"),
    )
    for name, chosen, colour, mark in series:
        if chosen:
            xs, ys = zip(*((each.x, each.y) for each in chosen), strict=True)
            axes.scatter(xs, ys, s=42, color=colour, marker=mark, zorder=3, clip_on=False, label=name)


def _line(points: Sequence[_Point]) -> list[tuple[float, float]]:
    return sorted((each.x, each.y) for each in points if each.kind == "ours")


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
    colour = _OURS if point.kind == "ours" else _SOFT
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
