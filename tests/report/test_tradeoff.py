"""The picture of `bench memory`: what is drawn where, and what it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from outsize.report.tradeoff import _FAILED, _draw_axes, draw_memory

GIB = 2**30


def _row(way: str, label: str, ms: float | None, peak_gib: float | None, **more: Any) -> dict[str, Any]:
    peak = None if peak_gib is None else int(peak_gib * GIB)
    return {"way": way, "label": label, "failed": None, "ms": ms, "peak_bytes": peak, **more}


def _ours(share: float, ms: float | None, peak_gib: float | None, **more: Any) -> dict[str, Any]:
    given = {"share": share, "budget_bytes": int(8 * share * GIB)}
    return _row(f"ours-{share:g}", f"ours, {100 * share:g} %", ms, peak_gib, **given, **more)


def _measured(**more: Any) -> dict[str, Any]:
    rows = [
        _row("plain", "plain eager", 76.0, 9.0),
        _row("again", "plain again", 77.0, 9.0),
        _row("compile", "compile", 70.0, 8.3),
        _row("save-on-cpu", "save_on_cpu, pinned", 599.0, 2.4),
        _row("blocks", "not weighed", 71.0, None),
        _row("compile-0.5", "does not run", None, None, failed="cannot be compiled"),
        _ours(0.5, 75.0, 4.4),
        _ours(0.25, 92.0, 2.6),
    ]
    return {"resident_bytes": GIB, "control": 1.004, "rows": rows, **more}


def _drawn(measured: dict[str, Any]) -> tuple[Axes, dict[str, Any], list[str]]:
    """Draw the axes, and return points by name and the names of the legend."""
    axes = Figure().subplots()
    points = {each.name: each for each in _draw_axes(axes, measured)}
    return axes, points, axes.get_legend_handles_labels()[1]


def test_another_way_far_slower_than_the_rest_lies_on_the_upper_edge() -> None:
    axes, points, names = _drawn(_measured())
    assert axes.get_ylim() == (0, pytest.approx(1.15 * 92))
    assert points["save_on_cpu, pinned: 599 ms"].is_above
    assert points["save_on_cpu, pinned: 599 ms"].y == axes.get_ylim()[1]
    assert points["plain eager"].y == 76.0
    assert {"plain", "other ways", "other ways, slower than the axis shows"} <= set(names)


def test_plain_and_ours_are_shown_as_they_are_however_slow() -> None:
    measured = _measured()
    measured["rows"][0]["ms"], measured["rows"][-1]["ms"] = 1446.0, 999.0
    axes, points, names = _drawn(measured)
    assert (points["plain eager"].y, points["ours, 25 %"].y) == (1446.0, 999.0)
    assert axes.get_ylim()[1] > 1446
    assert not any(each.is_above for each in points.values())
    assert "other ways, slower than the axis shows" not in names


def test_plain_is_not_one_of_the_other_ways() -> None:
    measured = _measured()
    measured["rows"] = measured["rows"][:2]
    _, points, names = _drawn(measured)
    assert {each.kind for each in points.values()} == {"plain"}
    assert names == ["plain", "stays between steps"]


def test_budgets_that_ours_does_not_run_within_are_marked() -> None:
    measured = _measured()
    measured["rows"].append(_ours(0.1, None, None, failed="does not fit"))
    axes, _, names = _drawn(measured)
    failed = [line for line in axes.lines if line.get_color() == _FAILED]
    assert [list(line.get_xdata()) for line in failed] == [[pytest.approx(0.8)] * 2]
    assert "budgets within which ours does not run" in names
    assert [each.get_text() for each in axes.texts if each.get_color() == _FAILED] == ["10 %"]


def test_a_budget_far_beyond_all_is_not_drawn(tmp_path: Path) -> None:
    measured = _measured()
    measured["rows"].append(_ours(1000, 75.0, 4.4))
    axes, *_ = _drawn(measured)
    assert [each.get_text() for each in axes.texts] == ["50 %", "25 %"]
    draw_memory(tmp_path / "memory.png", measured, title="a title")


def test_times_that_scatter_are_told_above() -> None:
    assert _drawn(_measured())[0].get_title() == ""
    assert "scatter by 56%" in _drawn(_measured(control=0.44))[0].get_title()
    assert _drawn(_measured(control=None))[0].get_title() == ""


@pytest.mark.parametrize("rows", [slice(0, 0), slice(0, 1), slice(6, 7), slice(None)])
def test_a_picture_of_any_number_of_ways(tmp_path: Path, rows: slice) -> None:
    measured = _measured()
    measured["rows"] = measured["rows"][rows]
    draw_memory(tmp_path / "memory.png", measured, title="a title")
    with Image.open(tmp_path / "memory.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape == (704, 1100, 3)
    ours = (np.abs(pixels.astype(int) - (0x0B, 0x6E, 0x8F)) < 8).all(axis=-1).sum()
    assert (ours > 100) == any("share" in each for each in measured["rows"])


def test_the_legend_lies_below_the_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    save = Figure.savefig

    def saved(figure: Figure, *args: Any, **how: Any) -> None:
        figures.append(figure)
        save(figure, *args, **how)

    monkeypatch.setattr(Figure, "savefig", saved)
    draw_memory(tmp_path / "memory.png", _measured(), title="a title")
    (legend,), (axes,) = figures[0].legends, figures[0].axes
    assert legend.get_window_extent().y1 <= axes.bbox.y0
