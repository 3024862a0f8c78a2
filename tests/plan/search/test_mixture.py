"""The best mix of what is moved and what is recomputed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.plan.lines import line, op_s

from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.search.mixture import mix
from outsize.plan.search.search import Search
from outsize.plan.search.timeline import Link
from outsize.plan.step import StepFacts, StepOp

FAST, SLOW = Link(1e15, 1e15), Link(1e3, 1e3)


def _seconds(op: StepOp) -> float:
    return op.flops * 1e-12 + op.moved_bytes * 1e-11


def _step(chain: Callable[..., StepFacts], num_layers: int = 12) -> StepCost:
    return StepCost(chain(1, 256, num_layers=num_layers))


def test_nothing_is_done_where_all_fits(chain: Callable[..., StepFacts]) -> None:
    cost = _step(chain)
    found = mix(cost, find_recipes(cost, _seconds), _seconds, FAST, cost.peak_bytes())
    assert (found.recipes, found.swap, found.extra_s) == ((), None, 0)
    assert found.peak_bytes == cost.peak_bytes()


def test_what_hides_leaves_first() -> None:
    # 40 bytes in all, 10 too many; only the first storage has time to leave and to return
    cost = StepCost(line([1, 10, 10, 1, 1], [1, 1, 1, 10], [10, 10, 10, 10]))
    found = mix(cost, (), op_s, Link(1, 1, start_s=0), 30, least_bytes=1)
    assert found.swap is not None
    assert [each.key for each in found.swap.moved] == [("layer1", 0, 0)]
    assert (
        found.stall_s == found.extra_s == pytest.approx(8)
    )  # asked for at 24 s, there at 34 s, needed at 26 s


def test_a_fast_link_moves_and_a_slow_one_makes_again(chain: Callable[..., StepFacts]) -> None:
    cost = _step(chain)
    recipes = find_recipes(cost, _seconds)
    budget_bytes = 0.7 * cost.peak_bytes()
    moved = mix(cost, recipes, _seconds, FAST, budget_bytes)
    assert moved.swap is not None
    assert moved.recipes == ()
    made = mix(cost, recipes, _seconds, SLOW, budget_bytes)
    assert made.swap is None
    assert made.recipes
    assert made.extra_s == pytest.approx(sum(each.cost_s for each in made.recipes))
    assert mix(cost, recipes, _seconds, None, budget_bytes).extra_s == pytest.approx(made.extra_s)
    for found in (moved, made):
        assert found.peak_bytes == cost.peak_bytes(found.changed) <= budget_bytes


@pytest.mark.parametrize("share", [0.8, 0.6, 0.4, 0.3])
def test_a_mix_is_no_slower_than_its_parts(chain: Callable[..., StepFacts], share: float) -> None:
    cost = _step(chain)
    recipes, budget_bytes = find_recipes(cost, _seconds), share * cost.peak_bytes()
    link = Link(2e10, 2e10)
    both = mix(cost, recipes, _seconds, link, budget_bytes)
    assert both.peak_bytes == cost.peak_bytes(both.changed)
    assert both.peak_bytes <= budget_bytes
    for alone in (
        mix(cost, recipes, _seconds, None, budget_bytes),
        mix(cost, (), _seconds, link, budget_bytes),
    ):
        assert alone.peak_bytes == cost.peak_bytes(alone.changed)
        assert alone.peak_bytes > budget_bytes or both.extra_s <= alone.extra_s + 1e-12


def test_what_fits_at_once_is_improved_as_well(
    chain: Callable[..., StepFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    improved = []
    monkeypatch.setattr(Search, "improved", lambda _, first, __: improved.append(first))
    cost = _step(chain)
    found = mix(cost, find_recipes(cost, _seconds), _seconds, Link(2e10, 2e10), 0.4 * cost.peak_bytes())
    assert [first.extra_s for first in improved] == [found.extra_s]


def test_sources_of_recipes_are_back_when_the_recipe_runs(chain: Callable[..., StepFacts]) -> None:
    cost = _step(chain)
    found = mix(cost, find_recipes(cost, _seconds), _seconds, Link(1e11, 1e11), 0.35 * cost.peak_bytes())
    moved = found.changed.twice
    assert any(not recipe.leaves.isdisjoint(moved) for recipe in found.recipes)
    for recipe in found.recipes:
        assert recipe.storage not in moved
        assert all(moved[each][1] <= recipe.back for each in recipe.leaves & moved.keys())


def test_where_nothing_fits_a_low_peak_is_told(chain: Callable[..., StepFacts]) -> None:
    cost = _step(chain)
    found = mix(cost, find_recipes(cost, _seconds), _seconds, FAST, 1)
    assert 1 < found.peak_bytes == cost.peak_bytes(found.changed) < 0.4 * cost.peak_bytes()
