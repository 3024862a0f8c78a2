"""How far a model looks around each pixel, walked backwards through its graph; what looks everywhere is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from outsize.errors import TraceError, explain
from outsize.graph import INPUT, ModelGraph, Op
from outsize.tiles.places import Operand, Place, Step
from outsize.tiles.rules import UNIFORM, step


@dataclass(frozen=True, slots=True)
class Reach:
    """Pixels needed before and after a core along one axis."""

    before_px: int
    after_px: int

    def aligned(self, stride_px: int) -> Reach:
        """Round both up to the stride."""
        return Reach(self.before_px + -self.before_px % stride_px, self.after_px + -self.after_px % stride_px)

    def at_most(self, limit_px: int) -> Reach:
        """Shorten both to a limit."""
        return Reach(min(self.before_px, limit_px), min(self.after_px, limit_px))


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An operation whose answer in a tile differs from the whole picture, and why."""

    module: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.module or 'the model'} ({self.kind}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Halo:
    """The exact need around a core whose corners are multiples of the stride."""

    rows: Reach
    cols: Reach
    stride_px: int
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether a tile with this halo gives the answer of the whole picture."""
        return not self.obstacles

    @property
    def aligned(self) -> Halo:
        """The halo to read: every side rounded up to the stride."""
        rows, cols = self.rows.aligned(self.stride_px), self.cols.aligned(self.stride_px)
        return Halo(rows, cols, self.stride_px, self.obstacles)

    @property
    def largest_px(self) -> int:
        """The longest side."""
        return max(self.rows.before_px, self.rows.after_px, self.cols.before_px, self.cols.after_px)

    def widened(self, more_px: int) -> Halo:
        """Lengthen every side: by what is looked at to make the model's input."""
        rows, cols = (
            Reach(each.before_px + more_px, each.after_px + more_px) for each in (self.rows, self.cols)
        )
        return Halo(rows, cols, self.stride_px, self.obstacles)

    def at_most(self, limit_px: int) -> Halo:
        """Shorten every side to a limit; whether that is still exact is for the caller to say."""
        return Halo(self.rows.at_most(limit_px), self.cols.at_most(limit_px), self.stride_px, self.obstacles)


def derive_halo(graph: ModelGraph) -> Halo:
    """Find what a core needs around it: forwards for where rows and columns go, backwards for how far is looked.

    Where there are obstacles, the reach is that of all other operations. A model whose output has not the
    height and width of its input is refused.
    """
    height, width = _input_size(graph)
    ops = graph.reaching_outputs()
    start = Place(None, (Fraction(1), Fraction(1)), (height, width))
    steps = _walk_forwards(ops, start)
    obstacles = [
        Obstacle(op.module, op.kind, reason)
        for op in ops
        if op.index in steps and (reason := steps[op.index].reason) is not None
    ]
    for index in graph.outputs:
        obstacles += _check_output(graph.ops[index], steps.get(index), (height, width))
    stride_px = lcm(*(scale.numerator for each in steps.values() for scale in each.place.scales))
    rows, cols = (_walk_backwards(graph, ops, steps, stride_px, which) for which in (0, 1))
    return Halo(rows, cols, stride_px, tuple(dict.fromkeys(obstacles)))


def _input_size(graph: ModelGraph) -> tuple[int, int]:
    shapes = [graph.ops[index].shape for index in graph.inputs]
    sizes = {shape[-2:] for shape in shapes}
    if not shapes or len(sizes) != 1 or any(len(shape) < 3 for shape in shapes):
        found = ", ".join("x".join(map(str, shape)) for shape in shapes) or "no input"
        needed = "pictures (batch x bands x height x width) of one height and width"
        raise TraceError(
            explain("a halo cannot be derived for these inputs", found, needed, "trace with pictures")
        )
    height, width = sizes.pop()
    return height, width


def _walk_forwards(ops: Sequence[Op], start: Place) -> dict[int, Step]:
    """Return the step of every operation that depends on the picture."""
    steps: dict[int, Step] = {}
    by_index = {op.index: op for op in ops}
    uniform: set[int] = set()
    for op in ops:
        if op.kind == INPUT:
            steps[op.index] = Step(start.at(len(op.shape) - 2, len(op.shape) - 1))
        elif op.kind in UNIFORM or (op.inputs and uniform.issuperset(_sources(op))):
            uniform.add(op.index)
        elif any(index in steps for index in _sources(op)):
            operands = [
                # One value everywhere is as good as a number.
                Operand(replace(by_index[index], shape=()), None)
                if index in uniform
                else Operand(by_index[index], steps[index].place if index in steps else None)
                for index in _sources(op)
            ]
            steps[op.index] = step(op, operands)
    return steps


def _sources(op: Op) -> tuple[int, ...]:
    """Return the inputs whose values an operation takes: a second one of a copy only names a precision (`type_as`)."""
    return op.inputs[:1] if op.kind == "clone" else op.inputs


def _check_output(op: Op, made_by: Step | None, size: tuple[int, int]) -> list[Obstacle]:
    if made_by is not None and made_by.place.axes is None:
        return [Obstacle(op.module, op.kind, "the output is not a map over the picture")]
    if made_by is None or made_by.place.sizes != size or any(scale != 1 for scale in made_by.place.scales):
        found = " x ".join(map(str, op.shape))
        needed = f"height and width of the input, {size[0]} x {size[1]}"
        raise TraceError(
            explain("the model's output cannot be tiled", found, needed, "resize inside the model")
        )
    if made_by.place.axes != (len(op.shape) - 2, len(op.shape) - 1):
        return [Obstacle(op.module, op.kind, "the output's last two axes are not rows and columns")]
    return []


def _walk_backwards(
    graph: ModelGraph, ops: Sequence[Op], steps: dict[int, Step], core_px: int, which: int
) -> Reach:
    """Ask for the core at every output and collect what that asks of the input, along one axis.

    Needs do not depend on the core's length: its start decides what is needed before, its end what after.
    """
    wanted: dict[int, tuple[int, int]] = dict.fromkeys(graph.outputs, (0, core_px))
    for op in reversed(ops):
        if op.index not in wanted or op.index not in steps:
            continue
        lo, hi = steps[op.index].needs[which](*wanted[op.index])
        for index in _sources(op):
            known_lo, known_hi = wanted.get(index, (lo, hi))
            wanted[index] = min(lo, known_lo), max(hi, known_hi)
    asked = [wanted[index] for index in graph.inputs if index in wanted]
    before_px = max((-lo for lo, _ in asked), default=0)
    after_px = max((hi - core_px for _, hi in asked), default=0)
    return Reach(max(0, before_px), max(0, after_px))
