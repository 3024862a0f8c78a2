"""Which saved tensors can be made again, and which of them are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outsize.plan.cost import StepCost
from outsize.plan.recompute import changed_by, choose_recipes, find_recipes
from outsize.plan.step import StepFacts

KIB = 1024


def test_recipes_are_found_through_in_place_changes(small_step: StepFacts) -> None:
    recipes = find_recipes(StepCost(small_step), lambda op: 1e-3)
    assert [each.storage for each in recipes] == [3]
    (recipe,) = recipes
    assert recipe.leaves == {1, 2}
    assert [op.kind for op in recipe.ops] == ["native_batch_norm", "relu_"]
    assert recipe.keys == (("relu", 0, 0), ("b", 0, 0))
    assert recipe.cost_s == 2e-3


def test_nothing_is_made_anew_where_all_fits(small_step: StepFacts) -> None:
    cost = StepCost(small_step)
    recipes = find_recipes(cost, lambda op: 1e-3)
    assert choose_recipes(cost, recipes, 12 * KIB) == ()
    assert choose_recipes(cost, recipes, 11 * KIB) == tuple(recipes)


def test_a_chain_frees_every_second_tensor_and_no_more_than_needed(chain: Callable[..., StepFacts]) -> None:
    cost = StepCost(chain(1, 64, num_layers=8))
    recipes = find_recipes(cost, lambda op: 1e-6)
    assert len(recipes) == 8
    size_bytes = recipes[0].freed_bytes
    full_bytes = cost.peak_bytes()
    chosen = choose_recipes(cost, recipes, full_bytes - 3 * size_bytes)
    assert len(chosen) < len(recipes)
    assert cost.peak_bytes(changed_by(chosen)) <= full_bytes - 3 * size_bytes
    every = choose_recipes(cost, recipes, 0)
    assert cost.peak_bytes(changed_by(every)) < cost.peak_bytes(changed_by(chosen))


def test_what_would_be_gone_is_held_if_it_is_smaller(small_step: StepFacts) -> None:
    # the convolution's output dies early, as that before a concatenation does
    storages = list(small_step.storages)
    storages[2] = replace(storages[2], dies=4, size_bytes=KIB)
    (recipe,) = find_recipes(StepCost(replace(small_step, storages=tuple(storages))), lambda op: 1e-3)
    assert recipe.held == {2}
    assert recipe.freed_bytes == KIB
    assert changed_by([recipe]).held == {2: 6}
    storages[2] = replace(storages[2], size_bytes=2 * KIB)
    assert find_recipes(StepCost(replace(small_step, storages=tuple(storages))), lambda op: 1e-3) == []


def test_what_was_changed_in_place_since_is_no_source(small_step: StepFacts) -> None:
    ops = list(small_step.ops)
    ops[3] = replace(ops[3], outputs=(4, 2))  # writes to what batch norm read
    assert find_recipes(StepCost(replace(small_step, ops=tuple(ops))), lambda op: 1e-3) == []
