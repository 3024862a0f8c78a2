"""What convolutions took in a real step comes into facts from shapes, and from there into peaks and what is held."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.plan.arena import held_bytes
from outsize.plan.cost import NOTHING, StepCost
from outsize.plan.step import StepFacts, StepOp, Storage
from outsize.plan.workspace import BACKWARD, FORWARD, with_workspaces

MIB = 2**20


def _facts(kinds: Sequence[tuple[str, str, bool]]) -> StepFacts:
    """Return a step of operations by kind, module and whether they run on the way back."""
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
SEEN = {FORWARD: [5 * MIB, 0], BACKWARD: [7 * MIB, 132 * MIB]}


def _taken(facts: StepFacts) -> list[int]:
    return [op.workspace_bytes // MIB for op in facts.ops]


def test_in_the_order_they_ran() -> None:
    assert _taken(with_workspaces(PLAIN, SEEN)) == [5, 0, 0, 7, 132]


def test_a_block_that_is_run_again_takes_what_it_took_before() -> None:
    again = [*((op.kind, op.module, op.backward) for op in PLAIN.ops[:4]), ("convolution", "a", True)]
    facts = _facts([*again, ("convolution_backward", "", True)])
    assert _taken(with_workspaces(facts, SEEN)) == [5, 0, 0, 7, 5, 132]


def test_a_step_with_other_convolutions_stays_as_it_is() -> None:
    assert with_workspaces(PLAIN, {FORWARD: [1], BACKWARD: [1, 2]}) is PLAIN
    assert with_workspaces(PLAIN, {}) is PLAIN


def test_it_counts_while_the_operation_runs() -> None:
    told = StepCost(with_workspaces(PLAIN, SEEN))
    assert [each // MIB for each in told.live_bytes()] == [65, 60, 60, 67, 192]
    assert StepCost(PLAIN).peak_bytes() == 60 * MIB
    # 20 lie in one page of 20; 132 take the rest of 160
    assert held_bytes(told, NOTHING) == (40 + 160) * MIB
