"""Two queues of copies beside compute, one out to host memory and one back in, on a GPU and as threads on a CPU."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

Way = Literal["out", "in"]


class Mark(Protocol):
    """A place in a queue, reached when all before it is done; torch.cuda.Event is one."""

    def query(self) -> bool:
        """Whether it was reached."""

    def synchronize(self) -> None:
        """Hold up the host until it is reached."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from here to another mark, both asked for with `timed`."""


class Copy(NamedTuple):
    """A copy that was asked for."""

    begin: Mark | None  # where timed
    end: Mark


class Streams(Protocol):
    """What a mover asks of a device. Copies of one way run in the order they were asked for.

    Neither memory of a copy is held here: who asks holds both until compute has waited for its end.
    """

    def now(self) -> Mark:
        """Mark all that compute was asked to do so far."""

    def copy(self, way: Way, target: Tensor, source: Tensor, after: Sequence[Mark], *, timed: bool) -> Copy:
        """Ask for a copy of flat bytes that begins when the marks are reached."""

    def wait(self, mark: Mark, *, timed: bool) -> tuple[Mark, Mark] | None:
        """Let compute go on only after a mark; where timed, return the places before and behind the wait."""

    def join(self) -> None:
        """Let compute go on only after all copies that were asked for since the last time."""

    def close(self) -> None:
        """Return when no copy runs any more."""


def open_streams(device: torch.device) -> Streams:
    """Return the queues of a device."""
    return CudaStreams(device) if device.type == "cuda" else ThreadStreams()


class CudaStreams:
    """Side streams of a GPU; compute is whatever stream is current where a method is called.

    In backward that is the stream of the forward operation: autograd sets it before it unpacks.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: dict[Way, torch.cuda.Stream] = {
            "out": torch.cuda.Stream(device),
            "in": torch.cuda.Stream(device),
        }
        self._asked: set[Way] = set()  # since the last join

    def now(self) -> Mark:
        """Mark all that compute was asked to do so far."""
        return self._mark(torch.cuda.current_stream(self._device), timed=False)

    def copy(self, way: Way, target: Tensor, source: Tensor, after: Sequence[Mark], *, timed: bool) -> Copy:
        """Ask for a copy of flat bytes that begins when the marks are reached."""
        stream = self._side[way]
        self._asked.add(way)
        for mark in after:
            stream.wait_event(cast(torch.cuda.Event, mark))
        begin = self._mark(stream, timed=True) if timed else None
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return Copy(begin, self._mark(stream, timed=timed))

    def wait(self, mark: Mark, *, timed: bool) -> tuple[Mark, Mark] | None:
        """Let compute go on only after a mark; where timed, return the places before and behind the wait."""
        compute, event = torch.cuda.current_stream(self._device), cast(torch.cuda.Event, mark)
        if not timed:
            compute.wait_event(event)
            return None
        before = self._mark(compute, timed=True)
        compute.wait_event(event)
        return before, self._mark(compute, timed=True)

    def join(self) -> None:
        """Let compute go on only after all copies that were asked for since the last time."""
        # a queue without any is no part of what is recorded now, and must not become one
        for way in sorted(self._asked):
            torch.cuda.current_stream(self._device).wait_stream(self._side[way])
        self._asked.clear()

    def close(self) -> None:
        """Return when no copy runs any more."""
        for stream in self._side.values():
            stream.synchronize()

    def _mark(self, stream: torch.cuda.Stream, *, timed: bool) -> Mark:
        event = torch.cuda.Event(enable_timing=timed)
        event.record(stream)
        return event


class ThreadStreams:
    """One thread for each way; compute is the thread that calls, so that its own marks are reached at once.

    A copy of a GPU does not keep its memory alive. Neither does one here: a copy that finds its memory given back
    fails, and who waits for it gets the error. `most_delay_s` puts a random pause before and behind every copy, and
    before every wait, so that whatever is not ordered comes out in another order.
    """

    def __init__(self, *, most_delay_s: float = 0, seed: int = 0) -> None:
        self._threads: dict[Way, ThreadPoolExecutor] = {
            "out": ThreadPoolExecutor(1, thread_name_prefix="outsize-out"),
            "in": ThreadPoolExecutor(1, thread_name_prefix="outsize-in"),
        }
        self._most_delay_s, self._chance = most_delay_s, random.Random(seed)
        self._drawing = threading.Lock()

    def now(self) -> Mark:
        """Mark all that compute was asked to do so far."""
        return _reached()

    def copy(self, way: Way, target: Tensor, source: Tensor, after: Sequence[Mark], *, timed: bool) -> Copy:
        """Ask for a copy of flat bytes that begins when the marks are reached."""
        marks, find_target, find_source = tuple(after), _weakly(target), _weakly(source)
        begin: Future[float] = Future()

        def run() -> float:
            for mark in marks:
                mark.synchronize()
            self._pause()
            begin.set_result(time.perf_counter())
            find_target().copy_(find_source())
            self._pause()
            return time.perf_counter()

        return Copy(_ThreadMark(begin) if timed else None, _ThreadMark(self._threads[way].submit(run)))

    def wait(self, mark: Mark, *, timed: bool) -> tuple[Mark, Mark] | None:
        """Let compute go on only after a mark; where timed, return the places before and behind the wait."""
        self._pause()
        before = _reached()
        mark.synchronize()
        return (before, _reached()) if timed else None

    def join(self) -> None:
        """Let compute go on only after all copies that were asked for since the last time."""
        for thread in self._threads.values():
            thread.submit(lambda: None).result()

    def close(self) -> None:
        """Return when no copy runs any more; those that did not begin yet never will."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads.values():
            thread.shutdown(wait=True)

    def _pause(self) -> None:
        if self._most_delay_s:
            with self._drawing:
                share = self._chance.random()
            time.sleep(share * self._most_delay_s)


class _ThreadMark:
    """A time that is known once it has come."""

    def __init__(self, time_s: Future[float]) -> None:
        self._time_s = time_s

    def query(self) -> bool:
        return self._time_s.done()

    def synchronize(self) -> None:
        self._time_s.result()

    def elapsed_time(self, end_event: Any) -> float:
        return float(end_event._time_s.result() - self._time_s.result()) * 1e3


def _reached() -> Mark:
    time_s: Future[float] = Future()
    time_s.set_result(time.perf_counter())
    return _ThreadMark(time_s)


def _weakly(flat: Tensor) -> Callable[[], Tensor]:
    """Remember where the bytes are without keeping them."""
    storage, offset, num_bytes = weakref.ref(flat.untyped_storage()), flat.storage_offset(), flat.numel()

    def find() -> Tensor:
        found = storage()
        if found is None:
            raise RuntimeError("memory was given back before it was copied")
        return torch.empty(0, dtype=torch.uint8).set_(found, offset, (num_bytes,), (1,))

    return find
