"""Activities: one at a time, the inner one of two, joined where they are too close to be told apart."""

from __future__ import annotations

import pytest

from outsize.progress import Activity, Reporter
from outsize.progress import activities as module


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_an_inner_activity_interrupts_the_one_around_it(clock: list[float]) -> None:
    reporter = Reporter()
    with reporter.noting() as noted:
        clock[0] += 1
        with reporter.bar("train", 4, "step", parallel=2):
            clock[0] += 3
            with reporter.doing("validate"):
                clock[0] += 2
            clock[0] += 4
        clock[0] += 5
    whole_s, found = noted.found()
    assert whole_s == 15
    assert found == (
        Activity("train", 2, ((1, 4), (6, 10)), 7),
        Activity("validate", 1, ((4, 6),), 2),
    )


def test_one_within_another_of_its_name_is_shared_like_that(clock: list[float]) -> None:
    reporter = Reporter()
    inner = reporter.bar("predict a.tif", 1, "tile", activity="predict")
    with reporter.noting() as noted, reporter.doing("predict", parallel=4), inner:
        clock[0] += 2
    assert noted.found()[1] == (Activity("predict", 4, ((0, 2),), 2),)


def test_spans_that_nobody_could_tell_apart_are_one(clock: list[float]) -> None:
    reporter = Reporter()
    with reporter.noting() as noted:
        for _ in range(3000):
            with reporter.doing("step"):
                clock[0] += 0.5
        clock[0] += 100
        with reporter.doing("step"):
            clock[0] += 0.5
    (only,) = noted.found()[1]
    assert only.seconds == 1500.5
    assert only.spans == ((0, 1500), (1600, 1600.5))


def test_what_is_noted_within_is_kept_apart(clock: list[float]) -> None:
    reporter = Reporter()
    with reporter.noting() as outer:
        with reporter.noting() as inner, reporter.doing("check"):
            clock[0] += 1
        assert not outer.any
    assert [each.name for each in inner.found()[1]] == ["check"]
    assert outer.found() == (1, ())
