"""Sums over ranks: closed forms, what they cannot be under, and what hides beneath backward."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.plan.links import Network, find_link
from outsize.plan.simulate.exchange import HostCopies, borders_s, exposed_s, ring_s, sum_gradients_s, tree_s

LINK = find_link("nvlink2-2")
NET = Network(LINK, find_link("infiniband-edr"), gpus_per_host=6)


def test_a_ring_sends_2_n_minus_1_over_n_of_the_bytes() -> None:
    assert ring_s(80e6, 4, LINK) == pytest.approx(6 * (3.4e-6 + 20e6 / 47.9e9))
    assert ring_s(80e6, 1, LINK) == 0
    assert sum_gradients_s(80e6, 4, NET) == ring_s(80e6, 4, LINK)


def test_a_tree_has_few_messages_one_after_another() -> None:
    link = find_link("infiniband-edr")
    assert tree_s(1.0, 200, link) == pytest.approx(16 * link.latency_s)
    assert tree_s(1.0, 200, link) < ring_s(1.0, 200, link) / 20
    assert ring_s(1e9, 4, link) < tree_s(1e9, 4, link)


@given(st.floats(1, 1e10), st.integers(2, 2000), st.integers(2, 2000))
def test_sums_take_longer_over_more_ranks_and_more_bytes(num_bytes: float, num: int, other: int) -> None:
    few, many = sorted((num, other))
    assert sum_gradients_s(num_bytes, few, NET) <= sum_gradients_s(num_bytes, many, NET) * (1 + 1e-9)
    assert sum_gradients_s(num_bytes, num, NET) < sum_gradients_s(2 * num_bytes, num, NET)
    least = 2 * (num - 1) / num * num_bytes / NET.inside.bytes_per_s
    assert sum_gradients_s(num_bytes, num, NET) >= least


def test_copies_through_the_host_come_on_top() -> None:
    copies = HostCopies(10e9, 5e9)
    assert sum_gradients_s(1e9, 2, NET, copies) == pytest.approx(sum_gradients_s(1e9, 2, NET) + 0.3)
    assert sum_gradients_s(1e9, 1, NET, copies) == 0


def test_what_is_summed_before_backward_ends_costs_nothing() -> None:
    ready = [(1.0, 10.0), (2.0, 10.0), (3.0, 10.0)]
    assert exposed_s(ready, 3.0, lambda size: size / 20, bucket_bytes=10) == pytest.approx(0.5)
    assert exposed_s(ready, 3.0, lambda size: size / 5, bucket_bytes=10) == pytest.approx(1 + 6 - 3)
    assert exposed_s(ready, 3.0, lambda size: size / 20, bucket_bytes=100) == pytest.approx(1.5)
    assert exposed_s([], 3.0, lambda size: size) == 0


def test_borders_go_both_ways_and_not_to_oneself() -> None:
    assert borders_s([1e6, 2e6], LINK, num_ranks=1) == 0
    assert borders_s([1e6, 2e6], LINK, num_ranks=4) == pytest.approx(4 * 3.4e-6 + 6e6 / 47.9e9)
