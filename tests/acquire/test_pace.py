"""Requests begin no faster than asked, and pauses grow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from outsize.acquire import pace
from outsize.acquire.pace import Manners, Pace, seconds_asked


class _Waited:
    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)


def _pace(monkeypatch: pytest.MonkeyPatch, manners: Manners) -> tuple[Pace, list[float]]:
    monkeypatch.setattr(pace.time, "monotonic", lambda: 100.0)
    made, waited = Pace(manners), _Waited()
    made.stop = waited  # type: ignore[assignment]
    return made, waited.waits


def test_a_rate_spaces_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    paced, waits = _pace(monkeypatch, Manners(rate_per_s=4))
    for _ in range(3):
        paced.begin()
    assert waits == [0, 0.25, 0.5]


def test_pauses_double_and_end_and_a_server_may_ask_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    paced, waits = _pace(monkeypatch, Manners(pause_s=1))
    monkeypatch.setattr(pace.random, "uniform", lambda *_: 1.0)
    for num in (1, 2, 3, 60):
        paced.after_failure(num, None)
    paced.after_failure(1, 7.0)
    paced.after_failure(1, 1e9)
    assert waits == [1, 2, 4, 120, 7, 120]


def test_retry_after_is_seconds_or_a_date() -> None:
    assert seconds_asked("3") == 3
    assert seconds_asked(None) is seconds_asked("soon") is None
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert 3500 < (seconds_asked(format_datetime(soon, usegmt=True)) or 0) <= 3600
    assert seconds_asked("-3") == 0
