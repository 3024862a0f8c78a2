"""Brings what the convolutions of a real step took besides their results into the facts of a step from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outsize.plan.step import StepFacts, StepOp

FORWARD, BACKWARD = "forward", "backward"


def is_gradient(kind: str) -> bool:
    """Whether an operation finds gradients of a convolution; `kind` is torch's name for it."""
    return "convolution" in kind and kind.endswith("_backward")


def is_convolution(kind: str) -> bool:
    """Whether an operation convolves, on the way forward or once more on the way back."""
    return "convolution" in kind and not kind.endswith("_backward")


def with_workspaces(facts: StepFacts, seen: Mapping[str, Sequence[int]]) -> StepFacts:
    """Return facts of a step whose convolutions take what those of a real one did, in the order they ran.

    A block that is run again convolves on the way back, and takes there what it took before. Facts with other
    convolutions than were seen stay as they are.
    """
    first = [op for op in facts.ops if is_convolution(op.kind) and not op.backward]
    gradients = [op for op in facts.ops if is_gradient(op.kind)]
    forward, backward = (seen.get(name, ()) for name in (FORWARD, BACKWARD))
    if len(first) != len(forward) or len(gradients) != len(backward):
        return facts
    by_place = {(op.module, op.call): taken for op, taken in zip(first, forward, strict=True)}
    taken = {op.index: num for op, num in zip((*first, *gradients), (*forward, *backward), strict=True)}

    def told(op: StepOp) -> StepOp:
        num_bytes = taken.get(op.index)
        if num_bytes is None and is_convolution(op.kind):
            num_bytes = by_place.get((op.module, op.call), by_place.get((op.module, 0)))
        return replace(op, workspace_bytes=num_bytes) if num_bytes else op

    return replace(facts, ops=tuple(map(told, facts.ops)))
