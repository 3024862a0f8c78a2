"""The picture of a schedule is to scale, and is XML."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from outsize.report.schedule import Slice, draw_schedule

_SVG = "{http://www.w3.org/2000/svg}"


def test_boxes_are_as_long_as_what_they_show() -> None:
    slices = [Slice(0, "forward", 0, 0, 1), Slice(0, "backward", 0, 3, 5), Slice(1, "forward", 0, 1, 2)]
    root = ElementTree.fromstring(draw_schedule(slices, "two ranks & a wait"))
    boxes = [each for each in root.iter(f"{_SVG}rect") if each.get("height") == "24.0"]
    widths = sorted(float(each.get("width", 0)) + 0.6 for each in boxes)
    assert widths[-3] / widths[0] == pytest.approx(2, rel=0.02)
    texts = [each.text for each in root.iter(f"{_SVG}text")]
    assert texts[:3] == ["two ranks & a wait", "rank 0", "rank 1"]
    assert "weights" not in texts
