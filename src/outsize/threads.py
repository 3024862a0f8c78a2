"""A pool of threads whose user does not wait forever: one that has died, as without memory, is seen and named.

A thread that cannot even say what went wrong leaves a future that nobody will ever fill.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from outsize.errors import RunError, explain

Item = TypeVar("Item")

_LOOK_S = 1.0
_numbers = itertools.count()


class Threads(ThreadPoolExecutor):
    """Threads of a name of their own; `work` is what they do, in words for an error."""

    def __init__(self, num: int, name: str, work: str, remedy: str = "free host memory") -> None:
        self._work, self._remedy = work, remedy
        self._seen: list[threading.Thread] = []
        # each notes itself: one that dies at once would be gone before anybody else looks
        super().__init__(num, thread_name_prefix=f"{name}-{next(_numbers)}", initializer=self._begin)

    def result(self, future: Future[Item]) -> Item:
        """Return what a thread has made; raise where one of them no longer runs and it is not there."""
        while not future.done():
            wait([future], timeout=_LOOK_S)
            dead = next((each for each in self._seen if not each.is_alive()), None)
            if dead is not None and not future.done():
                found, need = f"{dead.name} no longer runs", "all of them until the end"
                raise RunError(explain(f"a thread that {self._work} ended", found, need, self._remedy))
        return future.result()

    def _begin(self) -> None:
        self._seen.append(threading.current_thread())
