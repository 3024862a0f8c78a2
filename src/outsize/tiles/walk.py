"""Follows the picture forwards through a model's graph: where its rows and columns lie after each operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from outsize.graph import INPUT, ModelGraph, Op
from outsize.tiles.constants import UNIFORM, constant, differs
from outsize.tiles.local import ends
from outsize.tiles.places import BATCH, COLS, ROWS, Axis, Constant, Operand, OpNeeds, Place, plain
from outsize.tiles.rules import POINTWISE, step

OTHER_NUMBERS = "computes with numbers that depend on the size of the picture or batch"


def walk_forwards(ops: Sequence[Op], size: tuple[int, int], twins: Sequence[Op] | None) -> dict[int, OpNeeds]:
    """Return the step of every operation that depends on the picture.

    `twins` are the same operations for a picture of another size.
    """
    steps: dict[int, OpNeeds] = {}
    constants: dict[int, Constant] = {}
    by_index = {op.index: op for op in ops}
    partners = dict(zip((op.index for op in ops), twins or ops, strict=True))
    for op in ops:
        twin = partners[op.index]
        if op.kind == INPUT:
            steps[op.index] = OpNeeds(_start(op, size))
        elif not any(index in steps for index in sources_of(op)):
            sources = [(by_index[each], constants[each]) for each in sources_of(op) if each in constants]
            reshaped = any(
                by_index[each].shape != partners[each].shape for each in (*sources_of(op), op.index)
            )
            pointwise = op.kind in POINTWISE
            sized = _differ(op, twin, by_index, partners) or (
                reshaped and not pointwise and op.kind not in UNIFORM
            )
            constants[op.index] = constant(op, sources, pointwise=pointwise, sized=sized)
        else:
            operands = [
                Operand(
                    by_index[each], steps[each].place if each in steps else None, constants.get(each, _NONE)
                )
                for each in sources_of(op)
            ]
            done = step(op, operands)
            if done.reason is None and _differ(op, twin, by_index, partners):
                done = OpNeeds(done.place, done.needs, OTHER_NUMBERS, done.crops)
            steps[op.index] = done
    return steps


def _differ(op: Op, twin: Op, by_index: Mapping[int, Op], partners: Mapping[int, Op]) -> bool:
    if op.kind != "slice":
        return differs(op, twin)
    # a fixed number of pixels from the end is the same, however it was written
    axis, other = op.ints("dim")[0], twin.ints("dim")[0]
    lengths = by_index[op.inputs[0]].shape[axis], partners[op.inputs[0]].shape[other]
    return (axis, *ends(op, lengths[0])) != (other, *ends(twin, lengths[1]))


_NONE = Constant(frozenset())


def sources_of(op: Op) -> tuple[int, ...]:
    """Return the inputs whose values an operation takes.

    `ones_like` takes none, and of what a copy is given the second only names a precision (`type_as`).
    """
    if op.kind in UNIFORM:
        return ()
    return op.inputs[:1] if op.kind in ("clone", "expand_as") else op.inputs


def reaching(graph: ModelGraph) -> tuple[Op, ...]:
    """Return the operations on whose values an output depends, in the order they run."""
    wanted = set(graph.outputs)
    for op in reversed(graph.ops):
        if op.index in wanted:
            wanted.update(sources_of(op))
    return tuple(op for op in graph.ops if op.index in wanted)


def _start(op: Op, size: tuple[int, int]) -> Place:
    num_more = len(op.shape) - 3
    front: list[Axis] = [(BATCH,) if op.shape[0] > 1 else ()]
    front += [plain(each) for each in op.shape[1 : 1 + num_more]]
    one = Fraction(1)
    return Place((*front, (ROWS,), (COLS,)), (one, one), size, op.shape[0])
