"""Brings what the convolutions of a real step took, memory and time, into the facts of a step from shapes alone.

Both depend on the kernel that cuDNN chooses, which no shape tells: with 65 channels it may take five times as long as
with 64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outsize.plan.step import StepFacts, StepOp
from outsize.plan.times import Learnt

FORWARD, BACKWARD = "forward", "backward"


def is_gradient(kind: str) -> bool:
    """Whether an operation finds gradients of a convolution; `kind` is torch's name for it."""
    return "convolution" in kind and kind.endswith("_backward")


def is_convolution(kind: str) -> bool:
    """Whether an operation convolves, on the way forward or once more on the way back."""
    return "convolution" in kind and not kind.endswith("_backward")


def listed(ops: Sequence[StepOp]) -> dict[str, list[StepOp]]:
    """Return the convolutions of a step and those that find gradients, in the order they run."""
    return {
        FORWARD: [op for op in ops if is_convolution(op.kind) and not op.backward],
        BACKWARD: [op for op in ops if is_gradient(op.kind)],
    }


def as_seen(facts: StepFacts, learnt: Learnt) -> StepFacts:
    """Return facts of a step whose convolutions take what those of a real one did, in the order they ran.

    A block that is run again convolves on the way back, and takes there what it took before. Facts with other
    convolutions than were seen stay as they are.
    """
    workspaces, paces = (_placed(facts, seen) for seen in (learnt.workspaces, learnt.paces))
    if not workspaces and not paces:
        return facts

    def told(op: StepOp) -> StepOp:
        num_bytes, pace = int(workspaces.get(op.index, 0)), paces.get(op.index, 0.0)
        return replace(op, workspace_bytes=num_bytes, pace=pace) if num_bytes or pace else op

    return replace(facts, ops=tuple(map(told, facts.ops)))


def _placed(facts: StepFacts, seen: Mapping[str, Sequence[float]]) -> dict[int, float]:
    """Return what was seen by index of the operation; nothing where a step has other convolutions."""
    ops = listed(facts.ops)
    if any(len(ops[way]) != len(seen.get(way, ())) for way in ops):
        return {}
    placed = {op.index: value for way in ops for op, value in zip(ops[way], seen[way], strict=True)}
    by_place = {(op.module, op.call): placed[op.index] for op in ops[FORWARD]}
    for op in facts.ops:
        if op.backward and is_convolution(op.kind):
            again = by_place.get((op.module, op.call), by_place.get((op.module, 0)))
            if again is not None:
                placed[op.index] = again
    return placed
