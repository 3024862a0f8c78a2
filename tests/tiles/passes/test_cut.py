"""The cheapest cut of small graphs that can be seen through."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from outsize.tiles.passes.cut import cheapest_cut

# 0 -> 1 -> 2, 3, 4 -> 5: three branches, each half as costly as the one map that they all read
BRANCHES = {0: [], 1: [0], 2: [1], 3: [1], 4: [1], 5: [2, 3, 4]}
COSTS = {0: 0.0, 1: 2.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 9.0}


def test_one_map_before_branches_is_cheaper_than_all_behind_them() -> None:
    assert cheapest_cut(list(BRANCHES), BRANCHES, COSTS, {1}, {5}) == {0, 1}
    assert cheapest_cut(list(BRANCHES), BRANCHES, {**COSTS, 1: 4.0}, {1}, {5}) == {0, 1, 2, 3, 4}


def test_of_equal_cuts_the_later_one() -> None:
    chain: dict[int, list[int]] = {0: [], 1: [0], 2: [1], 3: [2], 4: [3]}
    assert cheapest_cut(list(chain), chain, dict.fromkeys(chain, 1.0), {0}, {4}) == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cut_is_cheaper(seed: int) -> None:
    import random

    rng = random.Random(seed)
    num = 8
    inputs = {node: sorted(rng.sample(range(node), min(node, rng.randint(1, 3)))) for node in range(num)}
    costs = {node: float(rng.randint(1, 9)) for node in range(num)}
    second = {num - 1}

    def cost(here: set[int]) -> float:
        return sum(
            costs[node] for node in here if any(node in inputs[e] for e in range(num) if e not in here)
        )

    def closed(here: set[int]) -> bool:
        return all(each in here for node in here for each in inputs[node])

    found = cheapest_cut(list(range(num)), inputs, costs, {0, 2}, second)
    sets = [{0, 2, *more} for size in range(num) for more in combinations(range(num - 1), size)]
    assert closed(found)
    assert not found & second
    assert cost(found) == min(cost(here) for here in sets if closed(here))


def test_a_wider_first_side_never_takes_anything_back() -> None:
    first = [{1}, {1, 2}, {1, 2, 3}]
    sides = [cheapest_cut(list(BRANCHES), BRANCHES, COSTS, each, {5}) for each in first]
    assert all(before <= after for before, after in pairwise(sides))
