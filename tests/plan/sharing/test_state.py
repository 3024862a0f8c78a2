"""The optimizer's state in shards: who keeps what, and what a plan makes of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.plan.plan import Replicate, plan_from_dict, unplanned
from outsize.plan.sharing import keepers, largest_share, sharded


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.integers(2, 8))
def test_shards_are_stretches_of_about_the_same_size(sizes: list[int], num_ranks: int) -> None:
    ranks = keepers(sizes, num_ranks)
    assert ranks == sorted(ranks)
    assert set(ranks) <= set(range(num_ranks))
    total = sum(sizes)
    even = 1 / num_ranks
    assert even - 1e-9 <= largest_share(sizes, num_ranks) <= even + max(sizes) / total + 1e-9


def test_a_plan_says_what_is_sent_and_is_read_back() -> None:
    plan = sharded(unplanned(step_s=1.0), 4, 2**30, 2**31)
    assert plan.replicate == Replicate(4)
    assert plan.step_s == 1.5
    assert "4 shards" in plan.why[0]
    assert "1.0 GiB after each step" in plan.why[0]
    assert plan_from_dict(plan.as_dict()) == plan
    assert plan.plain().replicate is None
