"""Schedules whose times are known in closed form, and rules that hold for all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.partition.chains import chains, plain

from outsize.errors import PlanError
from outsize.plan.partition import Chain, Terms, cut_chain, fold_chain
from outsize.plan.simulate.pipeline import Order, Played, ScheduleName, Stages, StageWork, play, stages_of

NAMES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "zero-bubble")


def _equal(num: int, *, recompute_s: float = 0.0, kept: int = 1) -> Stages:
    return Stages(tuple(StageWork(rank, 1.0, 2.0, recompute_s, kept) for rank in range(num)))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@given(num=st.integers(1, 6), micro=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_equal_stages_wait_p_minus_1_of_m_plus_p_minus_1(
    schedule: ScheduleName, num: int, micro: int
) -> None:
    played = play(_equal(num), micro, schedule)
    assert played.step_s == pytest.approx(3 * (micro + num - 1))
    assert played.idle_share == pytest.approx((num - 1) / (micro + num - 1))


def test_gpipe_holds_all_micro_batches_and_1f1b_a_few() -> None:
    assert play(_equal(4), 9, "gpipe").peaks() == [9, 9, 9, 9]
    assert play(_equal(4), 9, "1f1b").peaks() == [4, 3, 2, 1]


def test_1f1b_has_the_order_that_is_named_so() -> None:
    order = play(_equal(3), 5).order(1)
    assert [doing[0] for doing, _, _ in order] == list("ffbfbfbfbb")


def test_zero_bubble_fills_waits_with_gradients_of_weights() -> None:
    plain_s, split_s = (play(_equal(4), 12, each).step_s for each in ("1f1b", "zero-bubble"))
    assert plain_s == pytest.approx(45)
    assert 3 * 12 + 3 <= split_s < 42


def test_recompute_starts_before_the_gradient_comes() -> None:
    late = play(Stages(tuple(StageWork(rank, 1.0, 3.0) for rank in range(4))), 4, "gpipe").step_s
    early = play(_equal(4, recompute_s=1.0), 4, "gpipe", Order(last_first=True)).step_s
    assert early == pytest.approx(
        late - 3
    )  # that of each rank but the last hides in its wait for the first gradient
    assert (
        play(_equal(4, recompute_s=1.0), 4, "gpipe", Order(last_first=True, keeps_last=True)).step_s < early
    )


def _valid(played: Played, num_micro: int) -> None:
    ended = {(beat.doing, beat.stage, beat.micro): beat.end_s for beat in played.beats}
    for rank in range(played.stages.num_ranks):
        own = sorted((beat.start_s, beat.end_s) for beat in played.beats if beat.rank == rank)
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(own))
    for beat in played.beats:
        if beat.doing == "forward":
            for source in played.stages.sources[beat.stage]:
                sent_s = played.stages.sent_s(source, beat.stage)
                assert beat.start_s >= ended["forward", source, beat.micro] - 1e-9
                if played.stages.copies_overlap:
                    assert beat.start_s >= ended["forward", source, beat.micro] + sent_s - 1e-9
        if beat.doing == "backward":
            for reader in played.stages.readers[beat.stage]:
                assert beat.start_s >= ended["backward", reader, beat.micro] - 1e-9
    num = len(played.stages.works) * num_micro
    assert sum(beat.doing == "forward" for beat in played.beats) == num
    assert sum(beat.doing == "backward" for beat in played.beats) == num


@given(chains(), st.integers(1, 3), st.integers(1, 6), st.sampled_from(NAMES), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_schedule_ends_in_a_valid_order(
    chain: Chain, ranks: int, micro: int, schedule: ScheduleName, overlap: bool, folded: bool
) -> None:
    terms = Terms(ranks, micro, link_bytes_per_s=2, copies_overlap=overlap)
    try:
        partition = (fold_chain if folded else cut_chain)(chain, terms)
    except PlanError:
        return
    played = play(stages_of(chain, partition), micro, schedule)
    _valid(played, micro)
    most = max(played.busy_s(rank) for rank in range(ranks))
    assert played.step_s >= most - 1e-9
    if not folded and schedule != "zero-bubble" and overlap:
        # a micro-batch goes all the way; the others may run beside it without a wait
        assert played.step_s >= partition.whole_s - 1e-9


@given(st.integers(2, 4), st.integers(2, 4))
@settings(max_examples=9, deadline=None)
def test_a_fold_fills_and_drains_no_slower_than_a_row(ranks: int, micro: int) -> None:
    chain = plain([1.0] * (2 * ranks))
    terms = Terms(ranks, 4 * micro)
    row = play(stages_of(chain, cut_chain(chain, terms)), 4 * micro)
    fold = play(stages_of(chain, fold_chain(chain, terms)), 4 * micro)
    assert fold.step_s <= row.step_s * 1.01


def test_interleaved_stages_wait_less() -> None:
    chain = plain([1.0] * 8)
    row = play(stages_of(chain, cut_chain(chain, Terms(4, 16))), 16)
    rounds = play(stages_of(chain, cut_chain(chain, Terms(8, 16)), num_ranks=4), 16)
    assert row.step_s == pytest.approx(6 * (16 + 3))
    assert rounds.step_s < row.step_s
