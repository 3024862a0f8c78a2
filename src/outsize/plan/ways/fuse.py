"""Which layers of a step are run in another way than torch's: norms with the ReLU behind them, pooling and others."""

from __future__ import annotations

from collections.abc import Collection

from outsize.plan.cost import StepCost
from outsize.plan.plan import Fuse
from outsize.plan.step import StepFacts, StepOp

_NORMS = {"native_batch_norm", "cudnn_batch_norm"}
_RELUS = {"relu", "relu_"}
_POOLS = {"max_pool2d_with_indices"}
_JOINS = {"cat"}
_COLUMNS = {"convolution"}
_ENLARGINGS = {"upsample_bilinear2d"}
_ENLARGED = _ENLARGINGS | {"upsample_nearest2d", "upsample_bicubic2d", "_upsample_nearest_exact2d"}
_BY_SLICES = {"convolution", "_log_softmax", "fused_cross_entropy"}
_LEAST_SHARE = 0.01  # of what a step holds, that something is made later for


def find_fusible(
    facts: StepFacts,
    layers: Collection[str],
    relus: Collection[str],
    biased: Collection[str] = (),
    joining: Collection[str] = (),
) -> Fuse:
    """Return which of the named layers are fused, and how; what is `joining` may do so later.

    A ReLU belongs to a norm if it is a module, and the only one that sees what the norm makes. One that works in
    place is the only one if it comes first: all others see what it has made. A join adds the bias of one of the
    `biased` convolutions if that runs once and nobody else sees what it makes.
    """
    forward = [op for op in facts.ops if not op.backward]
    touching: dict[int, list[StepOp]] = {}
    for op in forward:
        for storage in {*op.inputs, *op.outputs}:
            touching.setdefault(storage, []).append(op)
    followed: dict[str, bool] = {}
    for op in forward:
        if op.kind in _NORMS and op.module in layers:
            others = [each for each in touching[op.outputs[0]] if each.index > op.index]
            followed[op.module] = followed.get(op.module, True) and _is_for_relu(others, relus)
    pools, joins, columns, enlargings = (
        tuple(dict.fromkeys(op.module for op in forward if op.kind in kinds and op.module in layers))
        for kinds in (_POOLS, _JOINS, _COLUMNS, _ENLARGINGS)
    )
    with_relu = tuple(path for path, is_for_relu in followed.items() if is_for_relu)
    norms = tuple(path for path in followed if path not in with_relu)
    columns = tuple(path for path in columns if path not in joins)  # which convolve, too
    shifts = tuple(
        (op.module, layer)
        for op in forward
        if op.kind in _JOINS and op.module in joins and (layer := _only_for(op, forward, touching, biased))
    )
    later = _later(facts, forward, joining) if joining else ()
    return Fuse(with_relu, norms, pools, joins, columns, enlargings, shifts, later)


def _later(facts: StepFacts, forward: list[StepOp], joining: Collection[str]) -> tuple[str, ...]:
    """Return those that join or enlarge for what reads it by slices, where that makes much of what a step holds."""
    cost = StepCost(facts)
    least_bytes = _LEAST_SHARE * (cost.peak_bytes() - cost.lasting_bytes)
    reading: dict[int, list[StepOp]] = {}
    for op in forward:
        for storage in op.inputs:
            reading.setdefault(storage, []).append(op)

    def is_for_slices(storage: int) -> bool:
        readers = reading.get(storage, [])
        return bool(readers) and all(
            op.kind in _BY_SLICES
            or (op.kind in (*_JOINS, "_to_copy") and op.outputs and is_for_slices(op.outputs[0]))
            for op in readers
        )

    found = [
        op.module
        for op in forward
        if op.kind in (*_JOINS, *_ENLARGED)
        and op.outputs
        and op.module in joining
        and cost.by_index[op.outputs[0]].size_bytes >= least_bytes
        and is_for_slices(op.outputs[0])
    ]
    return tuple(dict.fromkeys(found))


def _only_for(
    join: StepOp, forward: list[StepOp], touching: dict[int, list[StepOp]], biased: Collection[str]
) -> str | None:
    """Return the biased layer that makes what a join puts second, if for nobody else."""
    if len(join.inputs) != 2:
        return None
    seen = touching[join.inputs[1]]
    made = seen[0]
    if len(seen) != 2 or made.kind != "convolution" or made.module not in biased:
        return None
    runs = [op for op in forward if op.module in (made.module, join.module) and op.kind == made.kind]
    return made.module if len(runs) == 2 else None  # each once: the join convolves, too


def _is_for_relu(others: list[StepOp], relus: Collection[str]) -> bool:
    if not others or others[0].kind not in _RELUS or others[0].module not in relus:
        return False
    return others[0].kind == "relu_" or len(others) == 1
