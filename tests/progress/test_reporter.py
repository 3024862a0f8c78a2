"""Progress as JSON lines, and silence."""

from __future__ import annotations

import json

import pytest

from outsize.progress import Reporter


def test_json_lines_have_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter("json")
    with reporter.bar("count", 3, "thing") as bar:
        for _ in range(3):
            bar.advance(loss=0.5)
    reporter.say("end", "all done", path="x")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-2]["done"] == 3
    assert events[-2]["loss"] == 0.5
    assert events[-2]["rate_per_s"] > 0
    assert events[-1] == {"event": "end", "text": "all done", "path": "x"}


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter("quiet")
    with reporter.bar("count", 1, "thing") as bar:
        bar.advance()
    reporter.say("end", "all done")
    assert capsys.readouterr().out == ""


def test_live_bar_shows_text(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter("bar")
    with reporter.bar("count", 2, "thing") as bar:
        bar.advance(2, loss=1.0)
        reporter.say("note", "in between")
    assert "in between" in capsys.readouterr().out


def test_brackets_in_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter("bar").say("predicted", "scene[red].tif")
    assert capsys.readouterr().out == "scene[red].tif\n"
