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


def is_fused(kind: str) -> bool:
    """Whether an operation is a kernel of our own, which torch's dispatcher does not see on a GPU."""
    return kind.startswith("fused") and not is_convolution(kind)


def group_of(kind: str, *, backward: bool) -> str:
    """Return the name of the operations of a step that are alike: they are compared in the order they run.

    Fused convolutions are by torch's own in the end.
    """
    if is_convolution(kind) and not kind.endswith("_backward"):
        kind = "convolution"
    return f"{kind}, backward" if backward else kind


def grouped(ops: Sequence[StepOp]) -> dict[str, list[StepOp]]:
    """Return the operations of a step by group."""
    found: dict[str, list[StepOp]] = {}
    for op in ops:
        found.setdefault(group_of(op.kind, backward=op.backward), []).append(op)
    return found


def as_seen(facts: StepFacts, learnt: Learnt) -> StepFacts:
    """Return facts of a step whose operations take what those of a real one did, in the order they ran.

    A block that is run again does on the way back what it did before, and takes as much. Where a single value was seen
    of a group of several it is that of all; a group of which more or fewer were seen stays as it is.
    """
    if not learnt.workspaces and not learnt.paces:
        return facts
    workspaces = _placed(facts.ops, learnt.workspaces, spread=False)
    ops = (replace(op, workspace_bytes=int(workspaces.get(op.index, 0))) for op in facts.ops)
    return replace(facts, ops=paced(tuple(ops), learnt.paces))


def paced(ops: Sequence[StepOp], paces: Mapping[str, Sequence[float]]) -> tuple[StepOp, ...]:
    """Return operations that take as long as those that were seen."""
    placed = _placed(ops, paces, spread=True)
    return tuple(replace(op, pace=placed.get(op.index, 0.0)) for op in ops)


def _placed(ops: Sequence[StepOp], seen: Mapping[str, Sequence[float]], *, spread: bool) -> dict[int, float]:
    """Return what was seen by index of the operation; a single value of a group is that of all, or of none."""
    placed: dict[int, float] = {}
    by_place: dict[tuple[str, str, int], float] = {}
    for group, alike in grouped(ops).items():
        values = seen.get(group, ())
        values = [*values] * len(alike) if spread and len(values) == 1 else values
        if len(alike) == len(values):
            placed.update((op.index, value) for op, value in zip(alike, values, strict=True))
            by_place |= {(op.kind, op.module, op.call): placed[op.index] for op in alike if not op.backward}
    for op in ops:
        if op.backward and op.module and op.index not in placed:
            first = by_place.get((op.kind, op.module, 0))
            again = by_place.get((op.kind, op.module, op.call), first)
            if again is not None:
                placed[op.index] = again
    return placed
