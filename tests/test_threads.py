"""A pool of threads: results come, and one whose thread has died is not waited for."""

from __future__ import annotations

import sys
from concurrent.futures import Future

import pytest

from outsize.errors import DataError, RunError
from outsize.threads import Threads


def test_results_and_errors_come_through() -> None:
    def fail() -> int:
        raise DataError("broken")

    with Threads(2, "some", "does work") as pool:
        futures = [pool.submit(lambda number=number: number * number) for number in range(20)]
        assert [pool.result(each) for each in futures] == [number * number for number in range(20)]
        with pytest.raises(DataError, match=r"^broken$"):
            pool.result(pool.submit(fail))


def test_a_thread_that_dies_without_a_word_is_noticed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory left to say so: its result never comes, and nobody would wait for less."""
    monkeypatch.setattr(Future, "set_exception", lambda *_: sys.exit())

    def fail() -> int:
        raise MemoryError

    text = r"^a thread that does work ended: found some-\d+_0 no longer runs, needed all of them until the end; rest$"
    with Threads(1, "some", "does work", "rest") as pool, pytest.raises(RunError, match=text):
        pool.result(pool.submit(fail))
