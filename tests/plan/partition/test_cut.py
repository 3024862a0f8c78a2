"""The cut found is the best there is: compared with all cuts of small chains."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.partition.chains import chains, plain

from outsize.errors import PlanError
from outsize.plan.partition import Chain, ChainLayer, Partition, Stream, Terms, cut_chain


def _all(chain: Chain, terms: Terms) -> list[Partition]:
    found = []
    for ends in combinations(range(1, len(chain)), terms.num_ranks - 1):
        try:
            found.append(cut_chain(chain, terms, (*ends, len(chain))))
        except PlanError:
            continue
    return found


@st.composite
def _terms(draw: st.DrawFn) -> Terms:
    return Terms(
        num_ranks=draw(st.integers(1, 3)),
        num_micro=draw(st.integers(1, 6)),
        room_bytes=draw(st.sampled_from([float("inf"), 30, 60])),
        link_bytes_per_s=draw(st.sampled_from([float("inf"), 1, 3])),
        copies_overlap=draw(st.booleans()),
        in_flight=draw(st.sampled_from(["all", "few"])),
        may_recompute=draw(st.booleans()),
    )


@given(chains(), _terms())
@settings(max_examples=200, deadline=None)
def test_the_cut_is_the_best_of_all_cuts(chain: Chain, terms: Terms) -> None:
    every = _all(chain, terms)
    if not every:
        with pytest.raises(PlanError):
            cut_chain(chain, terms)
        return
    found = cut_chain(chain, terms)
    assert found.bound_s == pytest.approx(min(each.bound_s for each in every))
    assert max(found.peaks()) <= terms.room_bytes
    assert found.stages[0].first == 0
    assert found.stages[-1].end == len(chain)


@given(chains(), st.integers(1, 3), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_more_memory_and_a_faster_link_are_never_slower(chain: Chain, ranks: int, micro: int) -> None:
    slow = cut_chain(chain, Terms(ranks, micro, link_bytes_per_s=1))
    assert cut_chain(chain, Terms(ranks, micro, link_bytes_per_s=2)).bound_s <= slow.bound_s * (1 + 1e-9)
    try:
        tight = cut_chain(chain, Terms(ranks, micro, room_bytes=40))
    except PlanError:
        return
    assert cut_chain(chain, Terms(ranks, micro, room_bytes=80)).bound_s <= tight.bound_s * (1 + 1e-9)


def test_equal_layers_are_shared_evenly_and_wait_for_the_bubble_alone() -> None:
    found = cut_chain(plain([1.0] * 8), Terms(4, 12))
    assert [stage.end for stage in found.stages] == [2, 4, 6, 8]
    assert found.speedup_bound == pytest.approx(4 * 12 / (12 + 3))
    assert any("wait 20%" in reason for reason in found.why)


def test_a_cut_goes_where_little_crosses() -> None:
    chain = plain([1.0] * 6, sizes=[9, 9, 9, 1, 9])
    assert cut_chain(chain, Terms(2, 1, link_bytes_per_s=1)).stages[0].end == 4


def test_a_skip_counts_at_every_cut_that_it_passes() -> None:
    chain = Chain(plain([1.0] * 4, sizes=[5, 5, 5]).layers, (Stream(0, (1, 3), 7), Stream(1, (2,), 5)))
    assert chain.crossing == (7, 12, 7, 0)
    assert chain.messages([0, 0, 1, 2]) == {(0, 2): 7, (0, 1): 5}


def test_what_does_not_fit_is_recomputed_or_refused_with_the_least_need() -> None:
    chain = plain([1.0] * 4, sizes=[1] * 3, saved=10, state=5)
    roomy = cut_chain(chain, Terms(2, 8))
    assert not any(stage.recomputes for stage in roomy.stages)
    tight = cut_chain(chain, Terms(2, 8, room_bytes=45))
    assert [stage.recomputes for stage in tight.stages] == [True, False]
    assert tight.bound_s > roomy.bound_s
    with pytest.raises(PlanError, match="no cut into 2 stages fits: found 30 B on the fullest"):
        cut_chain(chain, Terms(2, 8, room_bytes=25))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (Terms(5, 8), "more stages than layers: found 5 stages, needed at most 4"),
        (Terms(0, 8), "counted from 1"),
        (Terms(2, 8, room_bytes=8), "'big' alone do not fit"),
    ],
)
def test_refusals_say_what_is_wrong_in_one_line(terms: Terms, message: str) -> None:
    layers = [
        ChainLayer(name, 1, 2, state_bytes=9 if name == "big" else 1) for name in ("a", "b", "big", "c")
    ]
    with pytest.raises(PlanError, match=message) as caught:
        cut_chain(Chain(tuple(layers), ()), terms)
    assert "\n" not in str(caught.value)


def test_fewer_micro_batches_than_stages_are_allowed_and_told() -> None:
    found = cut_chain(plain([1.0] * 4), Terms(4, 2))
    assert any("60%" in reason and "fewer micro-batches than stages" in reason for reason in found.why)


def test_a_long_chain_is_cut_in_time() -> None:
    times = [1.0 + (at * 7919 % 13) for at in range(240)]
    found = cut_chain(
        plain(times, sizes=[at * 31 % 17 for at in range(239)]), Terms(8, 40, link_bytes_per_s=9)
    )
    assert max(stage.work_s for stage in found.stages) < 1.1 * 3 * sum(times) / 8
