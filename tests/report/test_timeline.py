"""Spans as a picture."""

from __future__ import annotations

from outsize.report.timeline import Span, _drawn, draw_timeline


def test_spans_are_drawn_in_rows_and_to_scale() -> None:
    spans = [Span("wait", 0.0, 1.0), Span("step", 1.0, 4.0), Span("wait", 4.0, 4.5), Span("a<b", 1.0, 2.0)]
    picture = draw_timeline(spans, "a title")
    assert picture.count('fill="#e69f00"') == 2
    assert picture.count('fill="#0072b2"') == 1
    assert "a&lt;b" in picture
    assert ">4.5 s<" in picture
    assert draw_timeline([], "nothing")


def test_thousands_of_kernels_become_as_many_boxes_as_can_be_seen() -> None:
    spans = [Span("kernels", number * 1e-4, number * 1e-4 + 9e-5) for number in range(10_000)]
    assert len(_drawn(spans, 2e-5)) == 1
    assert len(_drawn(spans, 1e-6)) == 10_000
