"""What `bench memory` found, on the page and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import NASTY

from outsize.measurement import Measurement
from outsize.report.gather import gather
from outsize.report.measured import HEADS, basis, cells, remarks_of, scatter_of
from outsize.report.page import make_page
from outsize.report.tradeoff import draw_memory
from outsize.tasks import chapter_of

GIB = 2**30


def _row(label: str, ms: float | None, peak_gib: float | None, **more: Any) -> dict[str, Any]:
    peak = None if peak_gib is None else int(peak_gib * GIB)
    row = {"way": label, "label": label, "failed": None, "ms": ms, "over_plain": ms and ms / 70}
    return {**row, "peak_bytes": peak, "reserved_bytes": peak, "cap_bytes": None, **more}


def _ours(share: float, ms: float, peak_gib: float, **more: Any) -> dict[str, Any]:
    foretold = {"predicted_peak_bytes": 5 * GIB, "predicted_ms": 77.0, "peak_error": 0.02, "ms_error": -0.05}
    given = {"share": share, "budget_bytes": int(8 * share * GIB), "cap_bytes": 9 * GIB, "notes": []}
    plan = {"why": ["first", f"move 2 GiB, {NASTY}"]}
    name = f"ours, {100 * share:g} %"
    return _row(name, ms, peak_gib, **{**given, **foretold, "plan": plan, "behind": [], **more})


def _measured() -> dict[str, Any]:
    rows = [
        _row("plain eager", 76.0, 9.0),
        _row("compile", 70.0, 8.3),
        _row("save_on_cpu, pinned", 599.0, 2.4),
        _row("not weighed", 71.0, None),
        _row(NASTY, None, None, failed=f"cannot be compiled: {NASTY}"),
        _ours(0.5, 75.0, 4.4, behind=["checkpoint every block"]),
        _ours(0.25, 92.0, 2.6, notes=[f"of 3 tensors {NASTY}"]),
    ]
    return {
        "setting": {"model": NASTY, "batch": 4, "side_px": 800, "precision": "bf16"},
        "machine": {"device": "cuda:0", "name": NASTY},
        "kind": "memory",
        "versions": {},
        "command": f"outsize bench memory {NASTY}",
        "when": "2030-01-02T03:04:05+00:00",
        "resident_bytes": GIB,
        "plain": {"way": "compile", "label": "compile", "ms": 70.0, "peak_bytes": 8 * GIB, "measured": True},
        "control": 1.004,
        "rows": rows,
    }


def test_the_page_tells_it_and_escapes_it(full_run: Path) -> None:
    assert "Memory against time" not in make_page([full_run], chapter_of, version="1", when="now")
    measured = _measured()
    (full_run / "bench").mkdir()
    (full_run / "bench" / "memory.json").write_text(json.dumps(measured))
    assert "peak memory against step time" not in make_page(
        [full_run], chapter_of, version="1", when="now"
    )  # no picture
    draw_memory(full_run / "bench" / "memory.png", measured, title="a title")
    page = make_page([full_run], chapter_of, version="1", when="now")
    assert "Memory against time" in page
    assert NASTY not in page
    for text in (
        "ours, 25 %",
        "the process capped there",
        "slower than checkpoint every block",
        "599.00",
    ):
        assert text in page
    assert page.count("data:image/png;base64,") > 1
    assert [each["label"] for each in _benched(full_run).rows][1] == "compile"


def _benched(run: Path) -> Measurement:
    found = gather(run).benched
    assert found is not None
    return found


def test_a_row_shows_what_is_known() -> None:
    assert cells(_row("a", None, None)) == ["a", *["–"] * 8]
    found = cells(_ours(0.5, 75.0, 4.4))
    assert found == [
        "ours, 50 %",
        "75.00",
        "+7.1%",
        "4.4 GiB",
        "4.4 GiB",
        "5.0 GiB",
        "+2.0%",
        "77.00",
        "-5.0%",
    ]


def test_more_memory_than_the_budget_is_told() -> None:
    (given, *more) = remarks_of(_ours(0.5, 75.0, 4.4))
    assert "4.0 GiB given, and the process capped there; move 2 GiB" in given
    assert more == ["ours, 50 %: took 10.0% more than its budget"]
    assert remarks_of(_row("compile", 1.0, 1.0)) == []
    assert remarks_of(_ours(0.5, 75.0, 4.4, failed="no")) == []


def test_what_plain_is_is_told() -> None:
    measured = _measured()
    assert "Plain is compile, the fastest that gives nothing up: 8.0 GiB" in basis(measured)
    assert "*Over plain: the median of the ratios within rounds" in basis(measured)
    assert "over plain*" in HEADS
    measured["plain"]["measured"] = False
    assert "its predicted peak 8.0 GiB" in basis(measured)


@pytest.mark.parametrize("control", [None, 1.0, 1.04, 0.96])
def test_times_that_hold_still_need_no_word(control: float | None) -> None:
    assert scatter_of(control) is None


@pytest.mark.parametrize(("control", "share"), [(1.06, "6%"), (0.44, "56%"), (2.5, "150%")])
def test_times_that_scatter_are_told(control: float, share: str) -> None:
    text = f"times of this run scatter by {share}: so far is plain again from plain eager"
    assert scatter_of(control) == text
