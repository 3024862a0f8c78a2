"""What convolutions took in a real step comes into facts from shapes, and from there into peaks and what is held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outsize.plan.cost import NOTHING, StepCost
from outsize.plan.memory.arena import Arena
from outsize.plan.seen import as_seen
from outsize.plan.step import StepFacts, StepOp, Storage
from outsize.plan.times import Clock, Learnt, Rates

MIB = 2**20


def _facts(kinds: Sequence[tuple[str, str, bool]]) -> StepFacts:
    """Return a step of operations by kind, module and whether they run in backward."""
    ops = tuple(
        StepOp(index, kind, module, 0, backward, (), (), 0, 1, "bfloat16")
        for index, (kind, module, backward) in enumerate(kinds)
    )
    storages = (Storage(0, 40 * MIB, -1, len(ops), "weight"), Storage(1, 20 * MIB, 0, len(ops), "activation"))
    return StepFacts(ops, storages, (), training=True)


PLAIN = _facts(
    [
        ("convolution", "a", False),
        ("fused_norm", "b", False),
        ("fused_joined_convolution", "c", False),
        ("convolution_backward", "", True),
        ("convolution_backward", "", True),
    ]
)
SEEN = {
    "convolution": [5 * MIB, 0],
    "convolution_backward, backward": [7 * MIB, 132 * MIB],
}


def _learnt(workspaces: Mapping[str, Sequence[int]], **others: Any) -> Learnt:
    return Learnt({"arithmetic": 3.0}, 1e-6, None, 1, 8, workspaces, **others)


def _taken(facts: StepFacts) -> list[int]:
    return [op.workspace_bytes // MIB for op in facts.ops]


def test_in_the_order_they_ran() -> None:
    assert _taken(as_seen(PLAIN, _learnt(SEEN))) == [5, 0, 0, 7, 132]


def test_a_block_that_is_run_again_takes_what_it_took_before() -> None:
    again = [*((op.kind, op.module, op.backward) for op in PLAIN.ops[:4]), ("convolution", "a", True)]
    facts = _facts([*again, ("convolution_backward", "", True)])
    assert _taken(as_seen(facts, _learnt(SEEN))) == [5, 0, 0, 7, 5, 132]


def _paces(kinds: Sequence[tuple[str, str, bool, int]], paces: Mapping[str, Sequence[float]]) -> list[float]:
    facts = _facts([(kind, module, backward) for kind, module, backward, _ in kinds])
    sized = zip(facts.ops, kinds, strict=True)
    ops = tuple(replace(op, moved_bytes=moved_bytes) for op, (*_, moved_bytes) in sized)
    return [op.pace for op in as_seen(replace(facts, ops=ops), _learnt({}, paces=paces)).ops]


def test_what_is_run_again_takes_as_long_as_before_or_as_its_kind_does() -> None:
    kinds = [
        ("relu_", "a", False, 1),
        ("relu_", "a", False, 1),
        ("relu_", "b", False, 8),
        ("relu_", "a", True, 1),  # in the order of its module
        ("relu_", "a", True, 1),
        ("relu_", "", True, 1),  # nobody knows where: by bytes
        ("mul", "a", True, 1),
    ]
    assert _paces(kinds, {"relu_": [1.0, 2.0, 6.0]}) == [1, 2, 6, 1, 2, 5.1, 0]


def test_gradients_keep_their_own_times_where_others_of_their_kind_are_run_again() -> None:
    kinds = [("mm", "a", False, 1), ("mm", "a", True, 1), ("mm", "", True, 1), ("mm", "", True, 1)]
    assert _paces(kinds, {"mm": [1.0], "mm, backward": [3.0, 4.0]}) == [1, 1, 3, 4]
    assert _paces([*kinds, kinds[-1]], {"mm": [1.0], "mm, backward": [3.0, 4.0]}) == [1, 1, 3.5, 3.5, 3.5]


def test_a_convolution_that_is_run_again_takes_its_own_time_not_that_of_gradients() -> None:
    clock = Clock(Rates(1, 1, 1, 1, 1.0, 1, 1, 1, "published"), tf32=True, overlaps=True)
    sizes = {"flops": 10**6, "moved_bytes": 1000, "dtype": "bfloat16"}
    first, again = (StepOp(index, "convolution", "a", 0, bool(index), (), (), **sizes) for index in (0, 1))
    assert clock.op_s(again) == clock.op_s(first)


def test_a_group_of_which_others_were_seen_stays_as_it_is() -> None:
    assert _taken(as_seen(PLAIN, _learnt({**SEEN, "convolution": [MIB] * 3}))) == [0, 0, 0, 7, 132]
    assert as_seen(PLAIN, _learnt({})) is PLAIN


def test_it_counts_while_the_operation_runs() -> None:
    told = StepCost(as_seen(PLAIN, _learnt(SEEN)))
    assert [each // MIB for each in told.live_bytes()] == [65, 60, 60, 67, 192]
    assert StepCost(PLAIN).peak_bytes() == 60 * MIB
    # 20 lie in one page of 20; 132 take the rest of 160
    assert Arena(told).held_bytes(NOTHING) == (40 + 160) * MIB


def test_the_time_of_each_counts_in_place_of_that_of_its_class() -> None:
    learnt = _learnt(SEEN, paces={"convolution": [5.0, 0.0], "convolution_backward, backward": [2.0]})
    clock = Clock(Rates(1, 1, 1, 1, 1.0, 1, 1, 1, "published"), tf32=True, overlaps=True)
    one_s = clock.op_s(PLAIN.ops[0])
    told = as_seen(PLAIN, learnt)
    assert [op.pace for op in told.ops] == [5, 0, 0, 2, 2]  # the last by all of them together
    assert clock.taught(learnt).op_s(told.ops[0]) == 5 * one_s
    assert clock.taught(learnt).op_s(told.ops[2]) == 3 * one_s  # of which nothing was seen
