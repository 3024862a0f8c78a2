"""What a stage takes: memory of all micro-batches on their way, time with messages beside kernels or between."""

from __future__ import annotations

import pytest
from tests.plan.partition.chains import plain

from outsize.plan.partition.stages import Terms, on_the_way, slot_s, stage_of

CHAIN = plain([1.0, 2.0], sizes=[6], saved=10, state=5)


def test_ranks_that_come_first_hold_more_micro_batches() -> None:
    assert [on_the_way(Terms(3, 8), rank) for rank in range(3)] == [3, 2, 1]
    assert [on_the_way(Terms(3, 2), rank) for rank in range(3)] == [2, 2, 1]
    assert [on_the_way(Terms(3, 8, in_flight="all"), rank) for rank in range(3)] == [8, 8, 8]


def test_a_stage_keeps_or_recomputes_or_does_not_fit() -> None:
    kept = stage_of(CHAIN, 1, 2, 1, Terms(2, 4, in_flight="all"))
    assert kept is not None
    assert (kept.peak_bytes, kept.work_s, kept.recomputes) == (5 + 4 * 10, 6.0, False)
    again = stage_of(CHAIN, 1, 2, 1, Terms(2, 4, room_bytes=40, in_flight="all"))
    assert again is not None
    assert (again.peak_bytes, again.work_s, again.recomputes) == (5 + 10 + 4 * 6, 8.0, True)
    assert stage_of(CHAIN, 1, 2, 1, Terms(2, 4, room_bytes=38, in_flight="all")) is None


def test_messages_go_beside_kernels_or_between_them() -> None:
    terms = Terms(2, 4, link_bytes_per_s=1, link_latency_s=0.5)
    stage = stage_of(CHAIN, 1, 2, 1, terms)
    assert stage is not None
    assert stage.messages_s == 6.5
    assert slot_s(stage, terms) == 6.5
    assert slot_s(stage, Terms(2, 4, copies_overlap=False)) == pytest.approx(6.0 + 2 * 6.5)


def test_merged_layers_keep_their_sums_and_what_crosses() -> None:
    chain = plain([1.0 + at % 3 for at in range(40)], sizes=[at + 1 for at in range(39)], saved=3, state=5)
    few = chain.merged(8)
    assert len(few) <= 8
    assert few.forward_s(0, len(few)) == pytest.approx(chain.forward_s(0, 40))
    assert few.state_bytes(0, len(few)) == 5 * 40
    assert set(few.crossing) <= set(chain.crossing)
    assert chain.merged(40) is chain
