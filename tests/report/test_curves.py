"""Curves lie inside their frame, at the right place."""

from __future__ import annotations

import math
import re

import pytest

from outsize.report.curves import (
    HEIGHT,
    WIDTH,
    Axis,
    Curve,
    draw_curves,
    draw_epochs,
    draw_reliability,
    number,
    smooth,
)


def _points(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]  # type: ignore[misc]


def test_larger_is_higher_and_later_is_further_right() -> None:
    (line,) = _points(draw_curves(Axis("step"), Axis("loss"), [Curve("a", [(1, 3.0), (2, 1.0), (4, 2.0)])]))
    (x1, y1), (x2, y2), (x3, y3) = line
    assert x1 < x2 < x3
    assert (x3 - x1) == pytest.approx(3 * (x2 - x1), abs=0.3)
    assert y1 < y3 < y2
    for x, y in line:
        assert 0 < x < WIDTH
        assert 0 < y < HEIGHT


@pytest.mark.parametrize(
    "points",
    [[], [(1, 0.5)], [(1, 0.5), (2, 0.5)], [(0, 1e-9), (1, 2e-9)], [(1, math.nan), (2, math.inf), (3, 1.0)]],
)
def test_any_points_can_be_drawn(points: list[tuple[float, float]]) -> None:
    chart = draw_curves(Axis("x"), Axis("y"), [Curve("a", points)])
    assert "nan" not in chart
    assert "inf" not in chart


def test_only_several_curves_have_a_legend() -> None:
    one, two = Curve("first", [(0, 1), (1, 2)]), Curve("<second>", [(0, 2), (1, 3)])
    assert "legend" not in draw_curves(Axis("x"), Axis("y"), [one])
    both = draw_curves(Axis("x"), Axis("y"), [one, two])
    assert "first" in both
    assert "&lt;second&gt;" in both


def test_smoothing_starts_at_the_first_and_keeps_a_constant() -> None:
    assert smooth([(0, 5.0), (1, 1.0)])[0] == (0, 5.0)
    assert [y for _, y in smooth([(x, 3.0) for x in range(50)])] == pytest.approx([3.0] * 50)


def test_bars_are_as_high_as_the_accuracy() -> None:
    bins = [{"from": 0.0, "to": 0.5, "accuracy": 1.0, "confidence": 0.2}]
    bins.append({"from": 0.5, "to": 1.0, "accuracy": 0.25, "confidence": 0.8})
    heights = [float(h) for h in re.findall(r'<rect y="[\d.]+" height="([\d.]+)"', draw_reliability(bins))]
    assert heights[0] == pytest.approx(4 * heights[1], abs=0.4)


def test_ticks_are_short() -> None:
    assert [number(value) for value in (0, 0.25, 1500, 2e-5, 3e6)] == ["0", "0.25", "1,500", "2e-05", "3e+06"]


def test_epochs_are_whole() -> None:
    chart = draw_curves(Axis("epoch", whole=True), Axis("y"), [Curve("a", [(1, 10.0), (2, 40.0), (3, 20.0)])])
    texts = re.findall(r'text-anchor="middle">([^<]*)<', chart)
    assert texts[:3] == ["1", "2", "3"]


def test_one_epoch_lies_in_the_middle_of_a_chart_of_scores() -> None:
    chart = draw_epochs("validation mean IoU", [Curve("a", [(1, 0.44)])])
    assert re.findall(r'text-anchor="middle">([^<]*)<', chart)[:3] == ["0", "1", "2"]
    heights = re.findall(r'text-anchor="end">([^<]*)<', chart)
    assert (heights[0], heights[-1]) == ("0", "1")
    assert "1.5" not in re.findall(">([^<]+)</text>", chart)
