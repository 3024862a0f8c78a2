"""Sets of blocks, from coarse to fine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outsize.plan.cost import StepCost
from outsize.plan.step import StepFacts
from outsize.plan.ways.blocks import lies_in, list_blocks


def test_sets_run_from_few_large_blocks_to_many_small_ones(chain: Callable[..., StepFacts]) -> None:
    cost = StepCost(chain(1, 64, num_layers=12))
    sets = list_blocks(cost, lambda op: 1e-6)
    assert len(sets) > 1
    assert sets[0].paths[0] == "block0"
    assert all("." in path for path in sets[-1].paths)
    assert [len(each.paths) for each in sets] == sorted(len(each.paths) for each in sets)
    # layers of a layer are no blocks: they keep little more than their input
    assert not any(path.endswith((".conv", ".norm", ".relu")) for each in sets for path in each.paths)


def test_what_leaves_a_block_stays(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, 64, num_layers=4)
    cost = StepCost(facts)
    blocks = list_blocks(cost, lambda op: 1e-6)[0]
    leaving = {saved.storage for saved in facts.saved if saved.key[0] == "block1.layer0.conv"}
    assert blocks.paths[0] == "block0"
    assert leaving.isdisjoint(blocks.changed.recomputed)
    assert cost.peak_bytes(blocks.changed) < cost.peak_bytes()


def test_the_time_is_that_of_their_forward(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, 64, num_layers=4)
    blocks = list_blocks(StepCost(facts), lambda op: 1.0)[0]
    inside = [op for op in facts.ops if not op.backward and op.module.startswith(blocks.paths)]
    assert blocks.cost_s == len(inside)


def test_what_leaves_a_block_is_made_again_for_the_block_itself(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, 64, num_layers=4)
    cost = StepCost(facts)
    blocks = list_blocks(cost, lambda op: 1e-6)[0]
    (leaving,) = {saved.storage for saved in facts.saved if saved.key[0] == "block1.layer0.conv"}
    gone, back = blocks.changed.twice[leaving]
    outside, inside = cost.readers[
        leaving
    ]  # backward of the next block's convolution, then of this block's ReLU
    assert gone == outside + 1
    assert back == inside
    # the block runs again for its ReLU, before any tensor is needed that it alone keeps
    own = [each for each in blocks.changed.recomputed if cost.writers[each][0].module.startswith("block0.")]
    assert {blocks.changed.recomputed[each] for each in own} == {inside}
    assert min(cost.first_backward[each] for each in own) > inside


def test_what_goes_into_a_block_is_held_until_backward_has_left_it(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, 64, num_layers=4)
    cost = StepCost(facts)
    blocks = list_blocks(cost, lambda op: 1e-6)[0]
    (given,) = {saved.storage for saved in facts.saved if saved.key[0] == "block1.layer0.conv"}
    inside = [
        each for each in blocks.changed.recomputed if cost.writers[each][0].module.startswith("block1.")
    ]
    assert blocks.changed.held[given] == max(cost.readers[each][-1] for each in inside) + 1


def test_a_block_whose_input_is_overwritten_is_none(chain: Callable[..., StepFacts]) -> None:
    facts = chain(1, 64, num_layers=4)
    (given,) = {saved.storage for saved in facts.saved if saved.key[0] == "block1.layer0.conv"}
    ops = [
        replace(op, outputs=(*op.outputs, given))
        if op.module == "block1.layer1.conv" and not op.backward
        else op
        for op in facts.ops
    ]
    paths = {
        path
        for each in list_blocks(StepCost(replace(facts, ops=tuple(ops))), lambda op: 1.0)
        for path in each.paths
    }
    assert not any(path.startswith("block1.layer0") or path == "block1" for path in paths)


def test_a_module_lies_in_itself_in_those_around_it_and_in_the_model() -> None:
    assert all(lies_in("a.b.c", path) for path in ("a.b.c", "a.b", "a", ""))
    assert lies_in("a.b.c", "d", "a.b")
    assert not lies_in("a.b", "a.b.c", "a.bc", "b", "a.")
    assert not lies_in("a.b")
