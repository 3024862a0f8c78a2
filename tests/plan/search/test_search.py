"""The search: the same answer each time, within the budget, and no dead end where a way is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import StorageRecipe, find_recipes
from outsize.plan.search.choice import Choice, Item, PlainStep
from outsize.plan.search.search import _HABITS, PRICES, Search, _hindrance
from outsize.plan.search.timeline import Link
from outsize.plan.step import StepFacts, StepOp

LINK = Link(2e10, 2e10)


def _seconds(op: StepOp) -> float:
    return op.flops * 1e-12 + op.moved_bytes * 1e-11


def _search(cost: StepCost, share: float, link: Link | None = LINK) -> Search:
    return Search(cost, find_recipes(cost, _seconds), _seconds, link, share * cost.peak_bytes())


@pytest.mark.parametrize("link", [None, LINK], ids=["", "move"])
@pytest.mark.parametrize("share", [0.6, 0.45])
def test_what_is_found_keeps_the_budget_and_is_found_again(
    chain: Callable[..., StepFacts], share: float, link: Link | None
) -> None:
    cost = StepCost(chain(1, 256, num_layers=10))
    seconds = []
    for _ in range(2):
        search = _search(cost, share, link)
        first = search.first(PRICES)
        assert first is not None
        best = search.improved(first)
        assert best.timeline.peak_bytes <= share * cost.peak_bytes()
        assert best.extra_s <= first.extra_s
        seconds.append(best.extra_s)
    assert seconds[0] == seconds[1]


def test_among_many_items_copies_have_high_prices_too(
    chain: Callable[..., StepFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outsize.plan.search.search._MANY_ITEMS", 1)
    cost = StepCost(chain(1, 256, num_layers=10))
    slow = _search(cost, 0.6, Link(1e9, 1e9))
    few, cheap = slow.first(PRICES[::2]), slow.first(PRICES[:1])
    assert few is not None
    assert cheap is not None
    assert few.extra_s < 0.1 * cheap.extra_s  # at the lowest price all is moved, and compute waits for it


def test_of_many_alike_each_is_looked_at_a_few_times(
    chain: Callable[..., StepFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks, gain_bytes = 0, Choice.gain_bytes

    def count(choice: Choice, item: Item, budget_bytes: float) -> float:
        nonlocal num_looks
        num_looks += 1
        return gain_bytes(choice, item, budget_bytes)

    monkeypatch.setattr(Choice, "gain_bytes", count)
    search = _search(StepCost(chain(1, 64, num_layers=200)), 0.3, None)
    search.first(PRICES)
    assert len(search._items) > 300
    assert num_looks < 15 * len(search._items)


def test_a_recipe_that_makes_too_much_too_early_is_found_out(chain: Callable[..., StepFacts]) -> None:
    cost = StepCost(chain(1, 256, num_layers=10))
    choice = Choice(PlainStep(cost))
    single = [each for each in find_recipes(cost, _seconds) if not each.through]
    for recipe in sorted(single, key=lambda each: each.back):  # a chain from one end to the other
        if choice.admits(recipe):
            choice.take(recipe)
    fullest, peak_bytes = int(choice.live_bytes.argmax()), choice.peak_bytes
    hindrance = _hindrance(choice, None)
    assert isinstance(hindrance, StorageRecipe)
    choice.drop(hindrance)
    assert choice.live_bytes[fullest] < peak_bytes
    assert _hindrance(Choice(PlainStep(cost)), None) is None


def test_habits(chain: Callable[..., StepFacts]) -> None:
    cost = StepCost(chain(1, 256, num_layers=20))
    choice = Choice(PlainStep(cost))
    recipes = find_recipes(cost, _seconds)
    passing = next(each for each in recipes if each.through)
    assert [habit.likes(choice, passing) for habit in _HABITS] == [False, True, True]
    single = sorted((each for each in recipes if not each.through), key=lambda each: each.back)
    for recipe in single[:-1]:
        choice.take(recipe)
    # made at the very beginning of backward, and used at its end
    assert [habit.likes(choice, single[-1]) for habit in _HABITS] == [False, False, True]


def test_the_lowest_is_found_whatever_it_costs(chain: Callable[..., StepFacts]) -> None:
    cost = StepCost(chain(1, 256, num_layers=10))
    assert _search(cost, 0.01).first(PRICES) is None
    assert _search(cost, 0.01).lowest().timeline.peak_bytes < 0.45 * cost.peak_bytes()
