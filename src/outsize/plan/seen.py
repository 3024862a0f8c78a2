"""Brings what the operations of a real step took, memory and time, into the facts of a step from shapes alone.

Both depend on the kernels that libraries choose, which no shape tells: a convolution of 65 channels may take five times
as long as one of 64.
"""

from __future__ import annotations

from collections import Counter
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

    A block that is run again does in backward what it did before, and takes as much. Where a single value was seen
    of a group of several it is that of all; of a group of which more or fewer were seen nothing is known but how long
    they take on the whole.
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
    """Return what was seen by index of the operation: in the order they ran, and again for what is run again.

    What has a module in backward is run again, as its module was before. With `spread`, those of which others were
    seen are as their group was on the whole, or their kind.
    """
    placed: dict[int, float] = {}
    for group, alike in grouped(ops).items():
        values = seen.get(group, ())
        first = [op for op in alike if not _is_again(op)]
        values = [*values] * len(first) if spread and len(values) == 1 else values
        if len(first) == len(values):
            placed.update((op.index, value) for op, value in zip(first, values, strict=True))
    before: dict[tuple[str, str], list[StepOp]] = {}
    for op in ops:
        if not op.backward and op.index in placed:
            before.setdefault((op.kind, op.module), []).append(op)
    num_again: Counter[tuple[str, str]] = Counter()
    for op in filter(_is_again, ops):
        place = op.kind, op.module
        if place in before:
            placed[op.index] = placed[before[place][num_again[place] % len(before[place])].index]
            num_again[place] += 1
    return _spread(ops, seen, placed) | placed if spread else placed


def _spread(
    ops: Sequence[StepOp], seen: Mapping[str, Sequence[float]], placed: Mapping[int, float]
) -> dict[int, float]:
    """Return means for operations in backward that have no value: of their group, or of their kind before."""
    sums: dict[str, list[float]] = {}
    for op in ops:
        if not op.backward and op.index in placed:
            each = sums.setdefault(op.kind, [0.0, 0.0])
            each[0], each[1] = each[0] + placed[op.index] * op.moved_bytes, each[1] + op.moved_bytes
    means = {kind: total / moved for kind, (total, moved) in sums.items() if moved}
    found = {}
    for op in ops:
        if not op.backward or op.index in placed:
            continue
        values = () if _is_again(op) else seen.get(group_of(op.kind, backward=True), ())
        mean = sum(values) / len(values) if values else means.get(op.kind)
        if mean is not None:
            found[op.index] = mean
    return found


def _is_again(op: StepOp) -> bool:
    """Whether an operation is of a block that is run again: autograd's own have no module."""
    return op.backward and bool(op.module)
