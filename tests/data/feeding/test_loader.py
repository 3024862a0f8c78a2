"""Work ahead by threads and processes: in order, bounded, and over when its user is."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from outsize.data.feeding.loader import prefetch, prefetch_in_processes
from outsize.errors import DataError, RunError


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("read")]


@pytest.mark.parametrize(("num_threads", "num_ahead"), [(1, 0), (1, 3), (4, 1), (4, 50)])
def test_items_come_in_order(num_threads: int, num_ahead: int) -> None:
    def make(index: int) -> int:
        time.sleep(0.001 * (index * 7 % 5))  # later ones are often ready sooner
        return index * index

    indices = [5, 3, 8, 1, 0, 9, 2, 7] * 3
    found = list(prefetch(make, indices, num_threads=num_threads, num_ahead=num_ahead))
    assert found == [index * index for index in indices]
    assert not _threads()


def test_nothing_is_made_too_far_ahead() -> None:
    made = []

    def make(index: int) -> int:
        made.append(index)
        return index

    items = prefetch(make, range(100), num_threads=2, num_ahead=3)
    assert made == []
    for taken in range(20):
        next(items)
        time.sleep(0.005)  # time enough to run too far
        assert len(made) <= taken + 1 + 3 + 2
    items.close()  # type: ignore[attr-defined]


def test_an_exception_surfaces_where_its_item_would_be() -> None:
    def make(index: int) -> int:
        if index == 2:
            raise OSError("broken disk")
        return index

    items = prefetch(make, range(100), num_threads=3, num_ahead=5)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(OSError, match="broken disk"):
        next(items)
    assert not _threads()


def test_closing_early_ends_the_threads_and_drops_the_rest() -> None:
    made, are_closed = [], threading.Event()

    def make(index: int) -> int:
        if index:
            are_closed.wait()  # so that nothing but the first is made before
        made.append(index)
        return index

    items = prefetch(make, range(1000), num_threads=2, num_ahead=20)
    next(items)
    threading.Timer(0.05, are_closed.set).start()
    items.close()  # type: ignore[attr-defined]
    assert not _threads()
    assert len(made) < 10


def test_no_indices_no_items() -> None:
    assert list(prefetch(lambda index: index, [], num_threads=1, num_ahead=2)) == []


def test_processes_make_items_in_order_elsewhere() -> None:
    def make(index: int) -> tuple[int, int]:
        time.sleep(0.001 * (index * 7 % 5))
        return index, os.getpid()

    found = list(prefetch_in_processes(make, range(30), num_processes=2, num_ahead=6))
    assert [index for index, _ in found] == list(range(30))
    assert os.getpid() not in {process for _, process in found}


def test_an_error_in_a_process_is_the_error_here() -> None:
    def make(index: int) -> int:
        if index == 2:
            raise DataError("picture 2 is broken")
        return index

    with pytest.raises(DataError, match=r"^picture 2 is broken$"):
        list(prefetch_in_processes(make, range(5), num_processes=2, num_ahead=2))


def test_a_process_that_is_killed_is_told() -> None:
    def make(index: int) -> int:
        if index == 2:
            os.kill(os.getpid(), 9)
        return index

    with pytest.raises(RunError, match="a process that prepares data ended"):
        list(prefetch_in_processes(make, range(5), num_processes=2, num_ahead=2))


def test_a_thread_that_dies_without_a_word_is_noticed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory left to say so: its result never comes, and nobody would wait for less."""
    monkeypatch.setattr(Future, "set_exception", lambda *_: sys.exit())

    def make(index: int) -> int:
        raise MemoryError

    with pytest.raises(RunError, match=r"a thread that prepares data ended: found read-\d+_0 no longer runs"):
        list(prefetch(make, range(3), num_threads=1, num_ahead=1))
