"""Which blocks are compiled, and facts of a step in which they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from outsize.plan.memory.blocks import list_blocks
from outsize.plan.memory.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Compile, Plan, plan_from_dict
from outsize.plan.step import BLOCK_BYTES, Role, Saved, StepFacts, StepOp, Storage
from outsize.plan.ways.compiled import Compiled, CompiledSaved, blocks_to_compile, with_compiled
from outsize.plan.ways.way import Task
from outsize.plan.ways.ways import compiled, plain
from outsize.tiles.halo import Halo, Reach

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
    assert [each.size_bytes for each in changed.storages] == [each.size_bytes for each in facts.storages]
    at_turn = next(op.index for op in facts.ops if op.backward) - 1
    assert StepCost(changed).live_bytes()[at_turn] == StepCost(facts).live_bytes()[at_turn]


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


def _small_block(*, saves_product: bool) -> StepFacts:
    """What a block does: convolve, scale, add what came in, and on the way back scale and convolve."""
    num_bytes = 4 * BLOCK_BYTES
    roles: tuple[Role, ...] = ("input", "weight", *(["activation"] * 5))  # type: ignore[assignment]
    lives = ((-1, 7), (-1, 7), (0, 2), (1, 3), (2, 7), (4, 6), (5, 7))
    storages = tuple(
        Storage(index, num_bytes, born, dies, role)
        for index, ((born, dies), role) in enumerate(zip(lives, roles, strict=True))
    )
    named = [
        ("convolution", (0, 1), 2, 9),
        ("mul", (2,), 3, 0),
        ("add", (3, 0), 4, 0),
        ("sum", (4,), None, 0),
    ]
    back = [("mul", (4, 0), 5, 0), ("mul", (5, 0), 6, 0), ("convolution_backward", (6, 0), None, 9)]
    ops = tuple(
        StepOp(index, kind, "" if index > 3 else "block", 0, index > 3, inputs, outputs, flops, 1, "float32")
        for index, (kind, inputs, output, flops) in enumerate(named + back)
        for outputs in [() if output is None else (output,)]
    )
    saved = [Saved(("block", 0, 0), 0, num_bytes, packed=0)]
    if saves_product:
        saved.append(Saved(("block", 0, 1), 3, num_bytes, packed=2))
    return StepFacts(ops=ops, storages=storages, saved=tuple(saved), modules=("", "block"), training=True)


def test_light_operations_of_a_block_hand_on_without_memory() -> None:
    facts = with_compiled(_small_block(saves_product=False), {"block": CompiledSaved(0, 0.0)}, NUM_PX)
    sizes = [each.size_bytes // BLOCK_BYTES for each in facts.storages]
    assert sizes == [4, 4, 4, 0, 4, 0, 4]  # the product that is added to, and the first gradient
    assert facts.storages[2].dies == 1  # what was convolved is written over by the product


def test_what_is_saved_or_convolved_keeps_its_memory() -> None:
    facts = with_compiled(
        _small_block(saves_product=True), {"block": CompiledSaved(4 * BLOCK_BYTES, 0.0)}, NUM_PX
    )
    assert facts.storages[3].size_bytes == 4 * BLOCK_BYTES
    assert facts.storages[6].size_bytes == 4 * BLOCK_BYTES


def test_nothing_outside_of_compiled_blocks_is_handed_on() -> None:
    facts = _small_block(saves_product=False)
    assert with_compiled(facts, {}, NUM_PX) == facts


@pytest.mark.parametrize(("host_s", "takes_s"), [(0.0, 0.5), (0.1, 0.5), (3.0, 3.0)])
def test_a_compiled_step_takes_as_long_as_the_slower_of_device_and_host(
    chain: Callable[..., StepFacts], host_s: float, takes_s: float
) -> None:
    plain_s = 1.0 / len(chain(4, SIDE_PX).ops)
    tried = Compiled(Compile(("block0",)), {"block0": CompiledSaved(512, 0.0)}, 0.5, host_s)
    halo = Halo(Reach(6, 6), Reach(6, 6), 4)
    task = Task(4, SIDE_PX, chain, lambda op: plain_s, halo, host_op_s=1.0, compiled=(tried,))
    (way,) = compiled(task)
    assert way.step_s == pytest.approx(takes_s)
    # a CPU is both: what was seen of it is the share of a whole step
    (on_cpu,) = compiled(replace(task, overlaps=False, compiled=(replace(tried, host_s=0.0),)))
    assert on_cpu.step_s == pytest.approx(0.5 * plain(replace(task, overlaps=False)).step_s)


def test_what_a_tried_step_took_beyond_its_facts_grows_with_the_pixels(
    chain: Callable[..., StepFacts],
) -> None:
    tried = Compiled(Compile(("block0",)), {"block0": CompiledSaved(512, 0.0)}, 1.0, 0.0)
    facts = chain(1, SIDE_PX)
    peak_bytes = tried.peak_bytes(facts, NUM_PX)
    lasting_bytes = sum(each.size_bytes for each in facts.storages if each.born < 0)
    rise_bytes = peak_bytes - lasting_bytes
    assert tried.corrected(facts, NUM_PX, None) == tried
    assert tried.corrected(facts, NUM_PX, rise_bytes - 1000) == tried
    more = tried.corrected(facts, NUM_PX, rise_bytes + 10 * NUM_PX)
    assert more.peak_bytes(facts, NUM_PX) == peak_bytes + 10 * NUM_PX
    four = chain(4, SIDE_PX)
    assert more.peak_bytes(four, 4 * NUM_PX) == tried.peak_bytes(four, 4 * NUM_PX) + 40 * NUM_PX
