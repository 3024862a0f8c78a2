"""The pool lends exact bytes, never twice, takes them back whole, and says what to do where it cannot."""

from __future__ import annotations

import gc
import re
from concurrent.futures import Future

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import PlanError
from outsize.strategies.swap import pinned
from outsize.strategies.swap.pinned import Buffer, PinnedPool
from outsize.strategies.swap.streams import _ThreadMark

_CPU = torch.device("cpu")


def _mark() -> _ThreadMark:
    return _ThreadMark(Future())


def test_buffers_are_exact_and_apart() -> None:
    pool = PinnedPool(_CPU, 3 * 512)
    first, second = pool.take(100), pool.take(513)
    pool.memory(first).fill_(1)
    pool.memory(second).fill_(2)
    assert pool.memory(first).tolist() == [1] * 100
    assert pool.memory(second).tolist() == [2] * 513
    assert (first.begin, second.begin) == (0, 512)
    assert pool.in_use_bytes == pool.most_bytes == 3 * 512


def test_a_place_is_used_again_behind_the_copy_that_reads_it() -> None:
    pool = PinnedPool(_CPU, 1024)
    first, second = pool.take(512), pool.take(512)
    old, new = _mark(), _mark()
    pool.give(second, old)
    pool.give(first, new)
    assert pool.take(1024).after is new
    assert first.after is None


def test_of_joined_places_the_last_mark_counts_in_whatever_order_they_lie() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)):
        pool = PinnedPool(_CPU, 3 * 512)
        buffers = [pool.take(512) for _ in range(3)]
        marks = [_mark() for _ in range(3)]
        for mark, place in zip(marks, order, strict=True):
            pool.give(buffers[place], mark)
        assert pool.take(3 * 512).after is marks[-1], order


def test_a_place_nobody_reads_does_not_hide_the_mark_of_its_neighbour() -> None:
    pool = PinnedPool(_CPU, 1024)
    first, second = pool.take(512), pool.take(512)
    mark = _mark()
    pool.give(first, mark)
    pool.give(second, None)
    assert pool.take(1024).after is mark


def test_what_is_left_of_a_place_keeps_its_mark() -> None:
    pool = PinnedPool(_CPU, 1024)
    mark = _mark()
    pool.give(pool.take(1024), mark)
    assert pool.take(512).after is mark
    assert pool.take(512).after is mark


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4000), st.integers(0, 9)), max_size=60))
@settings(max_examples=150, deadline=None)
def test_no_two_buffers_share_a_byte_and_all_comes_back(steps: list[tuple[bool, int, int]]) -> None:
    pool = PinnedPool(_CPU, 16 * 1024, tell=lambda _: None)
    lent: list[Buffer] = []
    for take, num_bytes, which in steps:
        if take:
            buffer = pool.take(num_bytes)
            if buffer is None:
                continue
            assert buffer.begin % 512 == 0
            assert buffer.begin + num_bytes <= pool.size_bytes
            for other in lent:
                assert (
                    buffer.begin + num_bytes <= other.begin or other.begin + other.size_bytes <= buffer.begin
                )
            lent.append(buffer)
        elif lent:
            pool.give(lent.pop(which % len(lent)), None)
        assert pool.in_use_bytes == sum(-(-each.size_bytes // 512) * 512 for each in lent)
        assert pool.in_use_bytes + sum(free.end - free.begin for free in pool._free) == pool.size_bytes
    for buffer in lent:
        pool.give(buffer, None)
    assert pool.take(pool.size_bytes).begin == 0


def test_the_same_step_finds_the_same_places_a_thousand_times() -> None:
    pool = PinnedPool(_CPU, 20_480)
    seen = set()
    for _ in range(1000):
        buffers = [pool.take(num_bytes) for num_bytes in (5000, 700, 3000, 9000)]
        seen.add(tuple(buffer.begin for buffer in buffers))
        for buffer in reversed(buffers):
            pool.give(buffer, _mark())
    assert len(seen) == 1
    assert len(pool._free) == 1
    assert pool.in_use_bytes == 0


def test_a_full_pool_says_once_what_to_raise() -> None:
    told: list[str] = []
    pool = PinnedPool(_CPU, 1024, tell=told.append)
    first = pool.take(600)
    assert first is not None
    assert pool.take(1) is None
    assert pool.take(1) is None
    pool.give(first, None)
    assert pool.take(1) is not None
    assert pool.take(1024) is None
    assert len(told) == 1
    found = r"found a pool of 1024 bytes .* as planned, 1024 of them in use, .* needed 512 bytes"
    assert re.search(rf"stay on the device: {found} .*; raise limits\.host_memory", told[0])


def test_more_than_allowed_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(PlanError, match=r"found 4096 bytes .* needed 4608 bytes .* limits\.host_memory"):
        PinnedPool(_CPU, 4097, limit_bytes=4096)
    with pytest.raises(PlanError, match=r"limits\.host_memory"):
        PinnedPool(_CPU, 1 << 60)


def test_refused_pinning_is_told_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_pin", lambda slab, device: "operation not permitted")
    told: list[str] = []
    pool = PinnedPool(torch.device("cuda", 0), 10**9, tell=told.append)
    assert len(told) == 1
    assert "operation not permitted" in told[0]
    assert "expect steps to take about 200.0 ms longer" in told[0]
    assert "; free host memory" in told[0]
    assert not pool.pinned
    assert pool.memory(pool.take(10)).numel() == 10
    pool.close()


def test_pages_are_unlocked_once_also_where_nobody_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    unlocked: list[int] = []
    monkeypatch.setattr(pinned, "_pin", lambda slab, device: None)
    monkeypatch.setattr(pinned, "_unpin", lambda slab, is_pinned: unlocked.append(slab.numel()))
    pool = PinnedPool(torch.device("cuda", 0), 1024)
    assert pool.pinned
    pool.close()
    pool.close()
    assert unlocked == [1024]
    forgotten = PinnedPool(torch.device("cuda", 0), 2048)
    del forgotten
    gc.collect()
    assert unlocked == [1024, 2048]


def test_a_closed_pool_gives_nothing() -> None:
    pool = PinnedPool(_CPU, 1024)
    buffer = pool.take(10)
    pool.close()
    with pytest.raises(RuntimeError, match="was given back"):
        pool.memory(buffer)
    with pytest.raises(RuntimeError, match="was given back"):
        pool.take(10)


def test_a_pool_of_nothing_is_one() -> None:
    pool = PinnedPool(_CPU, 0)
    assert pool.size_bytes == 0
    assert not pool.pinned
    pool.close()
