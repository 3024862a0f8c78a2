"""Streams and their stand-in: copies keep their order, wait for marks, hold no memory, and end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch

from outsize.strategies.swap.streams import CudaStreams, Mark, ThreadStreams, Way, _ThreadMark, open_streams


@pytest.fixture
def streams() -> Iterator[ThreadStreams]:
    found = ThreadStreams()
    yield found
    found.close()


def _bytes(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def _gate() -> tuple[Future[float], Mark]:
    future: Future[float] = Future()
    return future, _ThreadMark(future)


def test_a_cpu_gets_the_stand_in() -> None:
    streams = open_streams(torch.device("cpu"))
    assert isinstance(streams, ThreadStreams)
    streams.close()


def test_a_copy_waits_for_its_marks_and_compute_for_the_copy(streams: ThreadStreams) -> None:
    source, target = _bytes(1, 2), _bytes(0, 0)
    future, gate = _gate()
    copy = streams.copy("out", target, source, (streams.now(), gate), timed=False)
    time.sleep(0.02)
    assert not copy.end.query()
    assert target.tolist() == [0, 0]
    future.set_result(0.0)
    assert streams.wait(copy.end, timed=False) is None
    assert target.tolist() == [1, 2]


def test_copies_of_one_way_stay_in_order_and_the_ways_are_apart(streams: ThreadStreams) -> None:
    target, other = _bytes(0), _bytes(0)
    one, two = _bytes(1), _bytes(2)
    future, gate = _gate()
    first = streams.copy("out", target, one, (gate,), timed=False)
    second = streams.copy("out", target, two, (), timed=False)
    streams.wait(streams.copy("in", other, one, (), timed=False).end, timed=False)
    assert other.tolist() == [1]
    assert not second.end.query()
    future.set_result(0.0)
    streams.wait(second.end, timed=False)
    assert first.end.query()
    assert target.tolist() == [2]


def test_a_view_of_a_larger_memory_is_copied_alone(streams: ThreadStreams) -> None:
    slab, source = _bytes(9, 9, 9, 9), _bytes(1, 2, 3)
    streams.wait(streams.copy("out", slab[1:3], source[:2], (), timed=False).end, timed=False)
    assert slab.tolist() == [9, 1, 2, 9]


@pytest.mark.parametrize("lost", ["source", "target"])
def test_memory_that_was_given_back_is_noticed(streams: ThreadStreams, lost: str) -> None:
    memory = {"source": _bytes(1), "target": _bytes(0)}
    future, gate = _gate()
    copy = streams.copy("in", memory["target"], memory["source"], (gate,), timed=False)
    del memory[lost]
    future.set_result(0.0)
    with pytest.raises(RuntimeError, match="given back"):
        streams.wait(copy.end, timed=False)


def test_times_are_those_of_copies_and_waits() -> None:
    streams = ThreadStreams(most_delay_s=0.02, seed=1)
    source, target = _bytes(1), _bytes(0)
    copy = streams.copy("out", target, source, (), timed=True)
    pair = streams.wait(copy.end, timed=True)
    assert pair is not None
    assert copy.begin is not None
    assert copy.begin.elapsed_time(copy.end) > 0
    streams.close()


@pytest.mark.parametrize("way", ["out", "in"])
def test_close_ends_the_threads_whatever_waits(way: Way) -> None:
    before = threading.active_count()
    streams = ThreadStreams(most_delay_s=0.01)
    source, targets = _bytes(1), [_bytes(0) for _ in range(20)]
    copies = [streams.copy(way, target, source, (), timed=False) for target in targets]
    behind = streams.copy("in", source, source, (copies[-1].end,), timed=False)
    streams.close()
    assert threading.active_count() == before
    with pytest.raises(CancelledError):
        behind.end.synchronize()
    streams.close()


class _FakeStream:
    """Writes down what a GPU's stream would be asked."""

    def __init__(self, lines: list[str], name: str) -> None:
        self.lines, self.name = lines, name

    def wait_event(self, event: _FakeEvent) -> None:
        self.lines.append(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self.lines.append(f"host waits for {self.name}")


class _FakeEvent:
    def __init__(self, lines: list[str], timed: bool) -> None:
        self.lines, self.name = lines, "timed event" if timed else "event"

    def record(self, stream: _FakeStream) -> None:
        self.name = f"{self.name} of {stream.name}"
        self.lines.append(self.name)


class _FakeBytes:
    def __init__(self, lines: list[str], current: list[str]) -> None:
        self.lines, self.current = lines, current

    def copy_(self, source: object, *, non_blocking: bool) -> None:
        assert non_blocking
        self.lines.append(f"copy on {self.current[-1]}")


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[CudaStreams, list[str], _FakeBytes]:
    lines: list[str] = []
    current = ["compute"]
    names = iter(["out", "in"])

    @contextmanager
    def stream(side: _FakeStream) -> Iterator[None]:
        current.append(side.name)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: _FakeStream(lines, next(names)))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: _FakeEvent(lines, enable_timing))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: _FakeStream(lines, current[-1]))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return CudaStreams(torch.device("cuda", 0)), lines, _FakeBytes(lines, current)


def test_a_gpu_is_asked_in_the_right_order(
    fake_gpu: tuple[CudaStreams, list[str], _FakeBytes],
) -> None:
    streams, lines, memory = fake_gpu
    copy = streams.copy("out", cast(Any, memory), cast(Any, memory), (streams.now(),), timed=False)
    streams.wait(copy.end, timed=False)
    assert lines == [
        "event of compute",
        "out waits for event of compute",
        "copy on out",
        "event of out",
        "compute waits for event of out",
    ]
    lines.clear()
    copy = streams.copy("in", cast(Any, memory), cast(Any, memory), (streams.now(),), timed=True)
    streams.wait(copy.end, timed=True)
    streams.close()
    assert lines == [
        "event of compute",
        "in waits for event of compute",
        "timed event of in",
        "copy on in",
        "timed event of in",
        "timed event of compute",
        "compute waits for timed event of in",
        "timed event of compute",
        "host waits for out",
        "host waits for in",
    ]
