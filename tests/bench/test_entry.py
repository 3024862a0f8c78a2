"""Rows: medians within rounds, what was predicted against what was seen, and who is ahead of ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outsize.bench.entry import Entry
from outsize.bench.gauge import Turn
from outsize.plan.plan import Plan

PLAN = Plan("train", 2, limit_bytes=100, peak_bytes=66, exact=True, why=("because",), step_s=0.011)


def _entry(name: str, times_ms: dict[int, float], peak_bytes: int | None = 80) -> Entry:
    turns = {number: Turn(ms, peak_bytes, peak_bytes and peak_bytes + 9) for number, ms in times_ms.items()}
    return Entry(name, name, run=lambda: None, turns=turns)


def _ours(budget_bytes: int, ms: float) -> Entry:
    entry = _entry("ours-0.5", {0: ms, 1: ms}, 60)
    return replace(entry, is_ours=True, share=0.5, budget_bytes=budget_bytes, plan=PLAN)


def test_ratios_are_taken_within_rounds() -> None:
    plain = _entry("plain", {0: 10.0, 1: 100.0, 2: 10.0})
    slow = _entry("slow", {1: 200.0})
    assert slow.over(plain) == 2.0
    row = slow.as_row(plain, [])
    assert (row["ms"], row["over_plain"], row["peak_bytes"], row["reserved_bytes"]) == (200.0, 2.0, 80, 89)
    assert plain.as_row(plain, [])["over_plain"] == 1.0
    assert "predicted_ms" not in row


def test_the_largest_peak_of_all_turns_counts() -> None:
    entry = _entry("plain", {0: 1.0})
    entry.turns[1] = Turn(3.0, 95, 96)
    assert (entry.ms, entry.least_ms, entry.peak_bytes, entry.reserved_bytes) == (2.0, 1.0, 95, 96)


def test_on_a_cpu_the_peak_is_the_weighed_one() -> None:
    entry = replace(_entry("plain", {0: 1.0}, None), weighed_bytes=50)
    assert (entry.peak_bytes, entry.reserved_bytes) == (50, None)
    assert _entry("compile", {0: 1.0}, None).peak_bytes is None


def test_predictions_are_held_against_what_was_seen() -> None:
    row = _ours(70, 10.0).as_row(_entry("plain", {0: 8.0, 1: 8.0}), [])
    assert row["predicted_peak_bytes"] == 66
    assert row["predicted_ms"] == 11.0
    assert row["peak_error"] == pytest.approx(0.1)
    assert row["ms_error"] == pytest.approx(0.1)
    assert row["plan"]["why"] == ("because",)


def test_ours_is_behind_a_faster_way_within_its_budget() -> None:
    others = [
        _entry("small and fast", {0: 9.0}, 70),
        _entry("small and slow", {0: 11.0}, 10),
        _entry("large and fast", {0: 5.0}, 71),
        _entry("not weighed", {0: 5.0}, None),
        replace(_entry("failed", {0: 5.0}, 10), failed="out of memory"),
        replace(_ours(60, 5.0), name="another of ours"),
    ]
    assert _ours(70, 10.0).as_row(None, others)["behind"] == ["small and fast"]


def test_a_way_that_does_not_run_says_so() -> None:
    entry = Entry("ours-0.1", "ours, 10 %", is_ours=True, share=0.1, budget_bytes=5, failed="too little")
    row = entry.as_row(_entry("plain", {0: 1.0}), [_entry("other", {0: 1.0}, 1)])
    assert (row["failed"], row["ms"], row["over_plain"], row["behind"]) == ("too little", None, None, [])
    assert row["predicted_ms"] is None
