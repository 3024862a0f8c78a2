"""Brings what the operations of a real step took, memory and time, into the facts of a step from shapes alone.

Both depend on the kernels that libraries choose, which no shape tells: a convolution of 65 channels may take five times
as long as one of 64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outsize.plan.step import StepFacts, StepOp
from outsize.plan.times import Learnt


def is_convolution(kind: str) -> bool:
    """Whether an operation convolves, or finds gradients of that; `kind` is torch's name for it."""
    return "convolution" in kind


def group_of(kind: str, *, backward: bool) -> str:
    """Return the name of the operations of a step that are alike: they are compared in the order they run."""
    return f"{kind}, backward" if backward else kind


def grouped(ops: Sequence[StepOp]) -> dict[str, list[StepOp]]:
    """Return the operations of a step by group."""
    found: dict[str, list[StepOp]] = {}
    for op in ops:
        found.setdefault(group_of(op.kind, backward=op.backward), []).append(op)
    return found


def as_seen(facts: StepFacts, learnt: Learnt) -> StepFacts:
    """Return facts of a step whose operations take what those of a real one did, in the order they ran.

    A block that is run again does on the way back what it did before, and takes as much. A group of which more or fewer
    were seen stays as it is.
    """
    workspaces, paces = (_placed(facts, seen) for seen in (learnt.workspaces, learnt.paces))
    if not workspaces and not paces:
        return facts

    def told(op: StepOp) -> StepOp:
        num_bytes, pace = int(workspaces.get(op.index, 0)), paces.get(op.index, 0.0)
        return replace(op, workspace_bytes=num_bytes, pace=pace) if num_bytes or pace else op

    return replace(facts, ops=tuple(map(told, facts.ops)))


def _placed(facts: StepFacts, seen: Mapping[str, Sequence[float]]) -> dict[int, float]:
    """Return what was seen by index of the operation."""
    placed: dict[int, float] = {}
    by_place: dict[tuple[str, str, int], float] = {}
    for group, ops in grouped(facts.ops).items():
        if len(ops) == len(seen.get(group, ())):
            placed.update((op.index, value) for op, value in zip(ops, seen[group], strict=True))
            by_place |= {(op.kind, op.module, op.call): placed[op.index] for op in ops if not op.backward}
    for op in facts.ops:
        if op.backward and op.module and op.index not in placed:
            first = by_place.get((op.kind, op.module, 0))
            again = by_place.get((op.kind, op.module, op.call), first)
            if again is not None:
                placed[op.index] = again
    return placed
