"""Waits count while a GPU has no work; played by marks that know their times."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from outsize.train import waits
from outsize.train.waits import BatchWaits

GPU = torch.device("cuda", 0)


@dataclass
class Mark:
    """Stands in for an event of a GPU."""

    at_ms: float
    is_over: bool = True

    def query(self) -> bool:
        return self.is_over

    def synchronize(self) -> None:
        assert self.is_over

    def elapsed_time(self, later: Mark) -> float:
        return later.at_ms - self.at_ms


def _waited_s(monkeypatch: pytest.MonkeyPatch, worked: Mark, arrived: Mark, host_s: float) -> float:
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(waits, "_mark_work", lambda _: worked)
    monkeypatch.setattr(waits, "_mark_now", lambda _: arrived)
    timed = BatchWaits()
    timed.end(GPU)
    timed.mark_work()  # of the first step
    assert timed.seconds() == 0.0
    timed.begin()
    now_s[0] += host_s
    timed.end(GPU)
    timed.mark_work()
    return timed.seconds()


def test_only_the_time_after_the_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host called a step of 20 ms in 1 ms and waited 25 ms: the GPU had no work for 6 of them."""
    assert _waited_s(monkeypatch, Mark(20.0), Mark(26.0), 0.025) == pytest.approx(0.006)


def test_only_the_time_of_waiting_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU was through long before the host, which had other things to do, asked for a batch."""
    assert _waited_s(monkeypatch, Mark(0.0), Mark(50.0), 0.002) == pytest.approx(0.002)


def test_a_gpu_that_has_work_left_has_not_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _waited_s(monkeypatch, Mark(20.0, is_over=False), Mark(0.0, is_over=False), 0.025) == 0.0


def test_a_cpu_waits_as_long_as_its_host() -> None:
    timed = BatchWaits()
    for _ in range(2):
        timed.begin()
        time.sleep(0.01)
        timed.end(torch.device("cpu"))
        timed.mark_work()
        assert timed.seconds() >= 0.01
