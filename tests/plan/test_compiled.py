"""Which blocks are compiled, and facts of a step in which they are."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from outsize.plan.blocks import list_blocks
from outsize.plan.compiled import CompiledSaved, blocks_to_compile, with_compiled
from outsize.plan.cost import StepCost
from outsize.plan.plan import Compile, Plan, plan_from_dict
from outsize.plan.recompute import find_recipes
from outsize.plan.step import StepFacts

SIDE_PX = 64
NUM_PX = SIDE_PX**2


@pytest.mark.parametrize("setting", [Compile(("a.b", "c"), 0.5), Compile(("a",))])
def test_the_setting_survives_its_json_form(setting: Compile) -> None:
    plan = Plan(purpose="train", batch=1, limit_bytes=1, peak_bytes=1, exact=True, why=(), compile=setting)
    assert plan_from_dict(json.loads(json.dumps(plan.as_dict()))) == plan


def test_small_blocks_are_taken_whole(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, SIDE_PX, num_layers=24)
    assert blocks_to_compile(facts) == tuple(f"block{index}" for index in range(12))


def test_large_blocks_are_taken_apart_down_to_modules_of_single_layers(
    chain: Callable[..., StepFacts],
) -> None:
    facts = chain(1, SIDE_PX, num_layers=4)
    expected = ("block0.layer0", "block0.layer1", "block1.layer0", "block1.layer1")
    assert blocks_to_compile(facts) == expected


def test_a_model_of_single_layers_has_no_blocks(small_step: StepFacts) -> None:
    assert blocks_to_compile(small_step) == ()


def test_bytes_grow_with_the_pixels() -> None:
    saved = CompiledSaved(fixed_bytes=100, bytes_per_px=2.5)
    assert saved.at(0) == 100
    assert saved.at(1000) == 100 + 2500


def _inner_bytes(facts: StepFacts, block: str) -> int:
    """What a block keeps for itself: what its convolutions and norms make, but for the last, which leaves it."""
    made = [op.outputs[0] for op in facts.ops if op.module.startswith(block) and op.kind != "relu_"]
    return sum(facts.storages[each].size_bytes for each in made[:-1])


def test_a_block_that_saves_the_same_changes_no_memory(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, SIDE_PX)
    same = CompiledSaved(0, _inner_bytes(facts, "block0") / NUM_PX)
    changed = with_compiled(facts, {"block0": same}, NUM_PX)
    assert changed.storages == facts.storages
    assert StepCost(changed).live_bytes() == StepCost(facts).live_bytes()


def test_a_block_that_saves_half_frees_the_other_half(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, SIDE_PX)
    inner_bytes = _inner_bytes(facts, "block0")
    changed = with_compiled(facts, {"block0": CompiledSaved(inner_bytes // 2, 0.0)}, NUM_PX)
    backward = next(op.index for op in facts.ops if op.backward)
    before, after = (StepCost(each).live_bytes()[backward] for each in (facts, changed))
    assert before - after == inner_bytes // 2
    assert StepCost(changed).peak_bytes() < StepCost(facts).peak_bytes()


def test_what_plain_keeps_nothing_for_itself_is_counted_all_the_same(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, SIDE_PX)
    changed = with_compiled(facts, {"block0.layer0.relu": CompiledSaved(1000, 0.0)}, NUM_PX)
    added = changed.storages[len(facts.storages) :]
    assert [each.size_bytes for each in added] == [1024]
    assert added[0].born == next(op.index for op in facts.ops if op.module == "block0.layer0.relu")


def test_nothing_inside_of_a_compiled_block_is_recomputed(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, SIDE_PX)
    plain = find_recipes(StepCost(facts), lambda op: 1e-6)
    assert any(
        path.startswith(("block0.", "block1.layer0.conv")) for each in plain for path, _, _ in each.keys
    )
    changed = StepCost(with_compiled(facts, {"block0": CompiledSaved(512, 0.0)}, NUM_PX))
    recipes = find_recipes(changed, lambda op: 1e-6)
    assert recipes
    made = {op.module for each in recipes for op in each.ops}
    assert not any(module.startswith("block0.") for module in made)
    assert not any(path.startswith("block0.") for each in recipes for path, _, _ in each.keys)
    assert all("block0" not in path for each in list_blocks(changed, lambda op: 1e-6) for path in each.paths)
