"""What a tuning found, read, as a table and as pictures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from outsize.errors import RunError
from outsize.report.tuned import Tuned, draw_importance, draw_slice, read_tuned, trials_table


def _row(
    number: int, score: float | None, state: str = "done", why: str = "", **values: Any
) -> dict[str, Any]:
    told = {"values": values, "epochs": 3, "seconds": 12.0, "why": why, "run": f"tune/trials/{number:04}"}
    return {"number": number, "state": state, "score": score, **told}


_TUNED = Tuned(
    "mean_iou",
    "mean IoU",
    {"lr": True, "width": False, "model": None},
    (
        _row(0, 0.5, lr=1e-3, width=4, model="unet"),
        _row(1, None, "pruned", "does not fit: 5.1 GiB, of 4.0 GiB", lr=1e-2, width=64, model="unet"),
        _row(2, 0.7, lr=1e-2, width=8, model={"name": "<erfnet>"}),
        _row(3, 0.1, "failed", "ended by signal SIGKILL", lr=1e-4, width=8, model="unet"),
    ),
    {"lr": 0.25, "width": 0.75},
)


def test_the_best_come_first_and_what_came_to_nothing_says_why() -> None:
    heads, rows, remarks = trials_table(_TUNED)
    assert heads == ["trial", "mean IoU", "lr", "width", "model", "epochs", "time", "outcome"]
    assert [row[0] for row in rows] == ["2", "0", "3", "1"]
    assert rows[-1][-1] == "does not fit"
    assert remarks == [
        "trial 3 failed: ended by signal SIGKILL",
        "trial 1 does not fit: 5.1 GiB, of 4.0 GiB",
    ]


def test_pictures_have_a_bar_for_each_key_and_a_point_for_each_trial() -> None:
    bars = ET.fromstring(draw_importance(_TUNED.importance))
    widths = [float(each.attrib["width"]) for each in bars.iter("rect")]
    assert [each.text for each in bars.iter("text")] == ["width", "75%", "lr", "25%"]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)
    for key in _TUNED.keys:
        drawn = ET.fromstring(draw_slice(_TUNED, key))
        points = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in drawn.iter("circle")]
        assert len(points) == 2
        (first_x, first_y), (best_x, best_y) = points  # the best is drawn last, over the others
        assert best_y < first_y
        assert best_x != first_x
        inside = [0 <= x <= 520 and 0 <= y <= 260 for x, y in points]
        assert all(inside)


def test_a_file_is_read_as_it_was_written_and_a_newer_or_broken_one_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(_TUNED.as_dict()))
    assert [dict(each) for each in read_tuned(path).rows] == [dict(each) for each in _TUNED.rows]
    path.write_text(json.dumps({**_TUNED.as_dict(), "schema": 2}))
    with pytest.raises(RunError, match="newer schema of trials"):
        read_tuned(path)
    path.write_text('{"schema": 1}')
    with pytest.raises(RunError, match="cannot be understood"):
        read_tuned(path)
