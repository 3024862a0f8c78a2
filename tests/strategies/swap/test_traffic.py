"""Bytes, rates and stalls are those of the copies and waits that were seen, and nothing is waited for unasked."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from outsize.strategies.swap.pinned import PinnedPool
from outsize.strategies.swap.streams import Copy, _ThreadMark
from outsize.strategies.swap.traffic import Counters, Meter, SwapTally


def _at(time_s: float) -> _ThreadMark:
    future: Future[float] = Future()
    future.set_result(time_s)
    return _ThreadMark(future)


@pytest.fixture
def pool() -> PinnedPool:
    return PinnedPool(torch.device("cpu"), 4096)


def test_rates_are_bytes_over_the_time_that_copies_ran(pool: PinnedPool) -> None:
    tally = SwapTally()
    tally.count("out", 100, Copy(_at(1.0), _at(1.5)))
    tally.count("out", 300, Copy(_at(7.0), _at(8.5)))
    tally.count("in", 50, Copy(_at(9.0), _at(9.1)))
    tally.num_on_demand = 1
    tally.waits.append((_at(8.0), _at(8.525)))
    tally.sum_up()
    found = tally.counters(pool)
    assert (found.num_out, found.out_bytes, found.num_in, found.in_bytes) == (2, 400, 1, 50)
    assert found.out_bytes_per_s == pytest.approx(200)
    assert found.in_bytes_per_s == pytest.approx(500)
    assert found.late_share == 1
    assert found.copy_s == pytest.approx(2.1)
    assert found.hidden_share == pytest.approx(0.75)
    form = found.as_dict()
    assert (form["hidden_share"], form["late_share"]) == (found.hidden_share, 1)
    assert json.loads(json.dumps(form)) == form


def test_only_waits_that_last_are_stalls(pool: PinnedPool) -> None:
    tally = SwapTally()
    tally.waits.extend([(_at(1.0), _at(1.00001)), (_at(2.0), _at(2.25)), (_at(3.0), _at(3.5))])
    tally.sum_up()
    found = tally.counters(pool)
    assert found.num_stalls == 2
    assert found.stall_s == pytest.approx(0.75)


def test_what_was_not_timed_is_not_said(pool: PinnedPool) -> None:
    tally = SwapTally()
    tally.count("out", 100, Copy(None, _at(1.0)))
    found = tally.counters(pool)
    assert (found.num_stalls, found.stall_s, found.out_bytes_per_s, found.in_bytes_per_s) == (None,) * 4
    assert found.late_share == 0
    assert found.copy_s is None
    assert found.hidden_share is None


def test_what_still_runs_is_waited_for_only_when_asked(pool: PinnedPool) -> None:
    tally = SwapTally()
    running: Future[float] = Future()
    tally.count("out", 100, Copy(_at(1.0), _at(2.0)))
    tally.count("out", 100, Copy(_at(2.0), _ThreadMark(running)))
    tally.sum_up()
    assert tally.counters(pool).out_bytes_per_s == pytest.approx(100)
    running.set_result(5.0)
    tally.sum_up(wait=True)
    assert tally.counters(pool).out_bytes_per_s == pytest.approx(50)


def test_pinned_bytes_are_those_of_the_pool(pool: PinnedPool) -> None:
    first, _ = pool.take(1000), pool.take(10)
    pool.give(first, None)
    found = SwapTally().counters(pool)
    assert (found.pinned_bytes, found.most_pinned_bytes, found.planned_pinned_bytes) == (512, 1536, 4096)


def test_a_meter_reads_the_latest_and_keeps_none(pool: PinnedPool) -> None:
    class Counting:
        def __init__(self, num_out: int) -> None:
            self.num_out = num_out

        def counters(self) -> Counters:
            return replace(SwapTally().counters(pool), num_out=self.num_out)

    meter, first, second = Meter(), Counting(1), Counting(2)
    assert meter.read() is None
    for each in (first, second):
        meter.watch(each)
        found = meter.read()
        assert found is not None
        assert found.num_out == each.num_out
    del second, each
    assert meter.read() is None


def test_a_replay_counts_all_that_its_recording_did(pool: PinnedPool) -> None:
    tally = SwapTally()
    before = tally.so_far()
    tally.num_forwards, tally.num_on_demand, tally.num_full, tally.full_bytes = 1, 2, 1, 512
    for _ in range(2):
        tally.count("in", 100, Copy(None, _at(1.0)))
    each = tally.back_to(before)
    assert tally.counters(pool).num_on_demand == 0
    for _ in range(5):
        tally.again(each)
    found = tally.counters(pool)
    assert (found.num_forwards, found.num_in, found.num_on_demand) == (5, 10, 10)
    assert (found.num_full, found.full_bytes, found.late_share) == (5, 2560, 1)
