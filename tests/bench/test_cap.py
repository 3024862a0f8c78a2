"""Caps of a process, as they are given and as they limit a plan."""

from __future__ import annotations

import pytest

from outsize.bench.cap import Cap, parse_cap
from outsize.bench.memory import check_budgets


@pytest.mark.parametrize(
    ("text", "limit_bytes", "label"),
    [
        ("16GiB", 16 * 2**30, "ours, capped at 16.0 GiB"),
        ("70%", 700, "ours, capped at 70 % of plain"),
        ("12.5%", 125, "ours, capped at 12.5 % of plain"),
    ],
)
def test_a_cap_is_a_size_or_a_share_of_plain(text: str, limit_bytes: int, label: str) -> None:
    cap = parse_cap(text)
    assert cap is not None
    assert (cap.limit_bytes(1000), cap.label, cap.text) == (limit_bytes, label, text)


@pytest.mark.parametrize("text", ["0.5", "", "%", "-3%", "inf%", "half"])
def test_other_texts_are_no_caps(text: str) -> None:
    assert parse_cap(text) is None


def test_caps_come_behind_shares_each_once() -> None:
    cap = Cap("70%", share=0.7)
    assert check_budgets([cap, 0.25, 0.5, cap]) == (0.5, 0.25, cap)
