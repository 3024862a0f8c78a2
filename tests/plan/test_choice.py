"""What a choice holds, kept up to date, is what counting from the start gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outsize.plan import recompute
from outsize.plan.choice import NEAR_PACKS, Choice, Ground, Item
from outsize.plan.cost import Changed, StepCost
from outsize.plan.mix import merged
from outsize.plan.recompute import find_recipes
from outsize.plan.step import StepFacts
from outsize.plan.swap import Movable, find_points


def _parts(facts: StepFacts) -> tuple[StepCost, Choice, list[Item]]:
    cost = StepCost(facts)
    choice = Choice(Ground(cost))
    return cost, choice, [*find_points(cost, least_bytes=1).movable, *find_recipes(cost, lambda op: 1e-3)]


def _made(choice: Choice) -> dict[int, int]:
    """Return when each recipe must run: for its own use, or for the first that starts from it."""
    found = {storage: recipe.back for storage, recipe in choice.recipes.items()}
    for _ in found:
        for storage in list(found):
            users = [found[user] for user, recipe in choice.recipes.items() if storage in recipe.leaves]
            found[storage] = min([found[storage], *users])
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(picks=st.lists(st.integers(0, 10**6), max_size=40))
@pytest.mark.parametrize("kinds", [frozenset(), frozenset({"convolution"})])
def test_taking_and_dropping_keeps_count(
    chain: Callable[..., StepFacts], monkeypatch: pytest.MonkeyPatch, kinds: frozenset[str], picks: list[int]
) -> None:
    monkeypatch.setattr(recompute, "CHEAP", recompute.CHEAP | kinds)  # with convolutions recipes form chains
    cost, choice, items = _parts(chain(1, 16, num_layers=6))
    for pick in picks:
        item = items[pick % len(items)]
        if choice.has(item):
            choice.drop(item)
        elif choice.admits(item):
            choice.take(item)
        moving, others = choice.on_the_way()
        away = {each.storage: (each.free, each.need) for each in moving}
        assert choice.changed().anew == _made(choice)
        changed = merged(choice.changed(), Changed(twice=away))
        assert choice.live_bytes.tolist() == cost.live_bytes(changed)
        for each in moving:
            others[each.born : each.free] += each.size_bytes
            others[each.need : each.dies] += each.size_bytes
        assert others.tolist() == choice.live_bytes.tolist()


def test_the_gain_is_what_exceeds_the_budget_less(chain: Callable[..., StepFacts]) -> None:
    _, choice, items = _parts(chain(1, 16, num_layers=4))
    budget_bytes = choice.peak_bytes // 2

    def excess() -> int:
        return int(np.maximum(choice.live_bytes - budget_bytes, 0).sum())

    for item in items:
        if choice.admits(item):
            before, gain_bytes = excess(), choice.gain_bytes(item, budget_bytes)
            choice.take(item)
            assert before - excess() == gain_bytes


def test_a_copy_can_be_changed_apart(chain: Callable[..., StepFacts]) -> None:
    _, choice, items = _parts(chain(1, 16, num_layers=4))
    choice.take(items[0])
    before = choice.live_bytes.tolist()
    twin = choice.copy()
    twin.drop(items[0])
    twin.take(items[-1])
    assert choice.live_bytes.tolist() == before
    assert choice.has(items[0])
    assert not choice.has(items[-1])


def test_what_a_recipe_is_made_from_can_be_moved_and_is_needed_by_then(
    chain: Callable[..., StepFacts],
) -> None:
    cost, choice, items = _parts(chain(1, 16, num_layers=4))
    movable = {each.storage: each for each in items if isinstance(each, Movable)}
    recipe = next(each for each in find_recipes(cost, lambda op: 1e-3) if each.leaves & movable.keys())
    (leaf,) = recipe.leaves & movable.keys()
    choice.take(recipe)
    choice.take(movable[leaf])
    (moved,) = choice.on_the_way()[0]
    assert moved.need == recipe.back < movable[leaf].need
    assert not choice.admits(recipe)
    assert not choice.admits(movable[leaf])


def test_a_chain_of_recipes_runs_when_its_end_is_asked_for(
    chain: Callable[..., StepFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recompute, "CHEAP", recompute.CHEAP | {"convolution"})
    cost, choice, _ = _parts(chain(1, 16, num_layers=12))
    recipes = sorted(find_recipes(cost, lambda op: 1e-3), key=lambda each: each.back)
    taken = []
    for recipe in recipes[:-1]:
        if choice.admits(recipe):
            choice.take(recipe)
            taken.append(recipe)
    # from the end of the step towards its beginning, for as long as what is made waits not too long for its use
    assert 1 < len(taken) < len(recipes) - 1
    made = choice.changed().anew
    assert made[taken[1].storage] == made[taken[0].storage] == taken[0].back < taken[1].back
    places = {saved.storage: place for place, saved in enumerate(cost.facts.saved)}
    for recipe in taken:
        asked = next(places[each.storage] for each in taken if each.back == made[recipe.storage])
        assert asked - places[recipe.storage] <= NEAR_PACKS
    assert sum(choice.extra_seconds().values()) == pytest.approx(sum(each.cost_s for each in taken))
