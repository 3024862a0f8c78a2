"""Which saved tensors can be recomputed, and from what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import StorageRecipe, find_recipes
from outsize.plan.step import Saved, StepFacts, StepOp, Storage

KIB = 1024


def _cheap(facts: StepFacts) -> list[StorageRecipe]:
    return [each for each in find_recipes(StepCost(facts), lambda op: 1e-3) if not each.costly]


def test_recipes_are_found_through_in_place_changes(small_step: StepFacts) -> None:
    (recipe,) = _cheap(small_step)
    assert recipe.storage == 3
    assert recipe.leaves == {1, 2}
    assert [op.kind for op in recipe.ops] == ["native_batch_norm", "relu_"]
    assert recipe.keys == (("relu", 0, 0), ("b", 0, 0))
    assert recipe.cost_s == 2e-3


def test_what_would_be_gone_is_held_if_it_is_smaller(small_step: StepFacts) -> None:
    # the convolution's output dies early, as that before a concatenation does
    storages = list(small_step.storages)
    storages[2] = replace(storages[2], dies=4, size_bytes=KIB)
    (recipe,) = _cheap(replace(small_step, storages=tuple(storages)))
    assert recipe.held == {2}
    assert recipe.freed_bytes == KIB
    storages[2] = replace(storages[2], size_bytes=2 * KIB)
    assert _cheap(replace(small_step, storages=tuple(storages))) == []


def test_what_was_changed_in_place_since_is_no_source(small_step: StepFacts) -> None:
    ops = list(small_step.ops)
    ops[3] = replace(ops[3], outputs=(4, 2))  # writes to what batch norm read
    assert _cheap(replace(small_step, ops=tuple(ops))) == []


def test_a_convolution_is_made_again_from_what_goes_into_it(small_step: StepFacts) -> None:
    recipe, *past = [each for each in find_recipes(StepCost(small_step), lambda op: 1e-3) if each.costly]
    assert all(each.through for each in past)
    assert (recipe.storage, recipe.leaves, recipe.costly) == (2, {0, 1}, (("m", 0),))
    assert recipe.back == 7
    assert recipe.passing_bytes == 0


def test_what_would_be_gone_is_made_by_a_convolution_on_the_way(small_step: StepFacts) -> None:
    storages = list(small_step.storages)
    storages[2] = replace(storages[2], dies=4)
    facts = replace(small_step, storages=tuple(storages), saved=small_step.saved[2:])
    (recipe,) = find_recipes(StepCost(facts), lambda op: 1e-3)
    assert [op.kind for op in recipe.ops] == ["convolution", "native_batch_norm", "relu_"]
    assert (recipe.storage, recipe.leaves, recipe.held) == (3, {0, 1}, frozenset())
    assert recipe.freed_bytes == recipe.passing_bytes == 2 * KIB


def test_one_way_has_one_convolution_for_each_storage_on_it(chain: Callable[..., StepFacts]) -> None:
    recipes = find_recipes(StepCost(chain(1, 64, num_layers=8)), lambda op: 1e-6)
    alone = [each for each in recipes if not each.through]
    assert len(alone) == 16
    assert sum(len(each.costly) for each in alone) == 8
    assert all(len(each.costly) <= 1 + len(each.through) <= 5 for each in recipes)


def test_a_source_is_kept_or_made_on_the_way() -> None:
    facts = _skipping(num_layers=6)
    found = [each for each in find_recipes(StepCost(facts), lambda op: 1e-3) if each.storage == 5]
    assert [(each.leaves, each.through) for each in found] == [({1, 4}, set()), ({0, 4}, {1})]
    assert [each.passing_bytes for each in found] == [0, KIB]


def _skipping(num_layers: int) -> StepFacts:
    """Return a row of operations, each of which saves what it makes; the second is read by the last one, too."""
    last = num_layers - 1
    kinds = ["first", "relu", *(["op"] * (num_layers - 3)), "cat"]
    ops = []
    for index, kind in enumerate(kinds):
        inputs = (*((index - 1,) if index else ()), *((1,) if index == last else ()))
        ops.append(StepOp(index, kind, f"layer{index}", 0, False, inputs, (index,), 0, 1, "float32"))
    for place in range(num_layers):
        read = last - place
        ops.append(StepOp(num_layers + place, "back", "", 0, True, (read,), (), 0, 1, "float32"))
    storages = [
        Storage(index, KIB, index, 2 * num_layers - index, "activation") for index in range(num_layers)
    ]
    saved = [Saved((f"layer{index}", 0, 0), index, KIB, index + 1) for index in range(num_layers)]
    return StepFacts(tuple(ops), tuple(storages), tuple(saved), training=True)
