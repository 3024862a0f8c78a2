"""Work done ahead of its use by a pool of threads, in order.

Threads, not processes: reading and decoding release the interpreter lock, nothing is pickled, and a job starts at
once. Order and content depend on the indices alone, never on the number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(
    make: Callable[[int], Item], indices: Iterable[int], *, num_threads: int, num_ahead: int
) -> Iterator[Item]:
    """Yield make(i) for each index in order, with up to `num_ahead` of them made beforehand."""
    with ThreadPoolExecutor(num_threads, thread_name_prefix="read") as pool:
        waiting: deque[Future[Item]] = deque()
        try:
            for index in indices:
                waiting.append(pool.submit(make, index))
                if len(waiting) > num_ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
