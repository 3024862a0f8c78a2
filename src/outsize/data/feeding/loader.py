"""Work done ahead of its use, in order; order and content depend on the indices alone, never on who does the work.

Threads where the work is reading and decoding: those let other threads run, nothing is copied between processes, and
a job starts at once. Processes where much of it is Python's own: threads that do such work hold up all others, also
the one that launches the kernels of a GPU.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from outsize import stopping
from outsize.errors import RunError, explain
from outsize.threads import Threads

Key = TypeVar("Key")
Item = TypeVar("Item")


def num_cores() -> int:
    """Count the cores this process may use, not those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prefetch(
    make: Callable[[Key], Item], keys: Iterable[Key], *, num_threads: int, num_ahead: int
) -> Iterator[Item]:
    """Yield make(key) for each key in order, with up to `num_ahead` of them made beforehand by threads."""
    remedy = "give the job more host memory, or set train.workers lower"
    with Threads(num_threads, "read", "prepares data", remedy) as pool:
        yield from _in_order(pool, make, keys, num_ahead, pool.result)


def prefetch_in_processes(
    make: Callable[[int], Item], indices: Iterable[int], *, num_processes: int, num_ahead: int
) -> Iterator[Item]:
    """Yield make(i) for each index in order, made by processes; for small items, which are pickled.

    The processes begin as copies of this one: `make` may be any function, and they are at work in milliseconds.
    """
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("fork"), initializer=_remember, initargs=(make,)
    ) as pool:
        with stopping.shielded():
            pool.submit(os.getpid)  # the first piece of work begins all processes
        own = [each for each in multiprocessing.active_children() if each not in others]
        try:
            yield from _in_order(pool, _make_remembered, indices, num_ahead)
        except BrokenProcessPool as error:
            raise worker_died(error, own) from error


def _in_order(
    pool: Executor,
    make: Callable[[Key], Item],
    keys: Iterable[Key],
    num_ahead: int,
    result: Callable[[Future[Item]], Item] = Future.result,
) -> Iterator[Item]:
    waiting: deque[Future[Item]] = deque()
    try:
        for key in keys:
            waiting.append(pool.submit(make, key))
            if len(waiting) > num_ahead:
                yield result(waiting.popleft())
        while waiting:
            yield result(waiting.popleft())
    finally:
        for future in waiting:
            future.cancel()


_remembered: list[Callable[[int], Any]] = []  # in a process of prefetch_in_processes: what it makes


def _remember(make: Callable[[int], Any]) -> None:
    stopping.end_with_parent()
    stopping.heed_terminate()  # by which the pool ends its processes when one of them is gone
    _remembered.append(make)
    gc.freeze()  # a look at what was here before would copy the memory that it lies in


def _make_remembered(index: int) -> Any:
    return _remembered[-1](index)


def worker_died(error: Exception, workers: Sequence[BaseProcess] = ()) -> RunError:
    """Return the error to raise where a process that prepares data is gone."""
    found, need = str(error).splitlines()[0], "all of them until the end"
    for each in workers:
        # of those that were not asked to end: SIGTERM is what the others get then
        if each.exitcode is not None and each.exitcode not in (0, -signal.SIGTERM):
            found = f"process {each.pid} {ended_by(each.exitcode)}"
    remedy = "give the job more host memory, or set train.workers lower"
    return RunError(explain("a process that prepares data ended", found, need, remedy))


def ended_by(exit_code: int) -> str:
    """Say how a process ended."""
    if exit_code >= 0:
        return f"with exit code {exit_code}"
    try:
        return f"by signal {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time one
        return f"by signal {-exit_code}"
