"""A fold keeps skips at home, and is the best of all folds of small chains."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.partition.chains import chains, plain

from outsize.errors import PlanError
from outsize.plan.partition import Chain, Stream, Terms, fold_chain
from outsize.plan.partition.folded import _step_s


@given(chains(7), st.integers(2, 3), st.integers(1, 6), st.sampled_from([float("inf"), 60]))
@settings(max_examples=100, deadline=None)
def test_the_fold_is_the_best_of_all_folds(chain: Chain, ranks: int, micro: int, room: float) -> None:
    terms = Terms(ranks, micro, room_bytes=room, link_bytes_per_s=2)
    every = []
    for flat in combinations(range(1, len(chain)), 2 * ranks - 2):
        cuts = tuple(zip(flat[: ranks - 1], reversed(flat[ranks - 1 :]), strict=True))
        every.append(_step_s(chain, terms, cuts))
    best = min(every, default=float("inf"))
    if best == float("inf"):
        with pytest.raises(PlanError):
            fold_chain(chain, terms)
        return
    found = fold_chain(chain, terms)
    assert found.bound_s == pytest.approx(best)
    assert max(found.peaks()) <= room


def test_encoder_and_decoder_of_a_level_are_on_one_rank() -> None:
    skips = (Stream(0, (5,), 50), Stream(1, (4,), 30))
    row = plain([1.0, 1, 1, 1, 1, 1], sizes=[1] * 5)
    found = fold_chain(Chain(row.layers, (*row.streams, *skips)), Terms(3, 6, link_bytes_per_s=10))
    assert [stage.rank for stage in found.stages] == [0, 1, 2, 1, 0]
    assert found.stages[0].messages_s == pytest.approx(0.1)  # the skip stays
    assert found.folded


def test_a_long_chain_is_folded_as_well_as_its_layers_allow() -> None:
    found = fold_chain(plain([1.0] * 100), Terms(4, 40))
    work = [sum(stage.work_s for stage in found.stages if stage.rank == rank) for rank in range(4)]
    assert max(work) <= 1.1 * sum(work) / 4


def test_too_few_layers_are_refused() -> None:
    with pytest.raises(PlanError, match="more stages than layers"):
        fold_chain(plain([1.0] * 4), Terms(3, 4))
