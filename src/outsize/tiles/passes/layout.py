"""Parts a whole picture's graph into passes over its tiles, and says what is kept between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from outsize.errors import TraceError, explain
from outsize.graph import INPUT, PARAMETER, ModelGraph, Op
from outsize.tiles.constants import DRAWN
from outsize.tiles.halo import Obstacle
from outsize.tiles.passes.cut import cheapest_cut
from outsize.tiles.passes.parts import Map, OpPart, PassOperand, Role, map_at
from outsize.tiles.passes.rules import part_of

# Numbers that may be held whole for one operation (a quarter of a GiB in float32): what is pooled to a few values may
# be treated by any operation, and so may a map that is small enough.
HELD_NUMBERS = 1 << 26

_NO_SUM = "looks at the whole picture in a way that is no sum over its parts"
_BY_MEMORY = (
    "reads memory by the layout of a tensor, which is another for one that was put together from parts"
)


@dataclass(frozen=True, eq=False)
class PassGraph:
    """Which operation runs in which pass over the tiles, and what lasts from one pass to the next."""

    graph: ModelGraph
    parts: Mapping[int, OpPart]  # of operations on which the output depends, in the order they run
    pass_of: Mapping[int, int]
    num_passes: int
    kept: tuple[tuple[int, ...], ...]  # of each pass: maps that later ones read
    pooled: tuple[
        tuple[int, ...], ...
    ]  # of each pass: operations that add up numbers of the whole picture in it
    obstacles: tuple[Obstacle, ...] = ()
    number_bytes: int = 4  # of what the model computes with

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture."""
        rows, cols = self.graph.ops[self.graph.inputs[0]].shape[-2:]
        return rows, cols

    @property
    def output(self) -> int:
        """The map that is wanted."""
        return self.graph.outputs[0]

    @property
    def num_pools(self) -> int:
        """How many operations look at the whole picture."""
        return sum(part.role in (Role.POOL, Role.NORM, Role.WHOLE) for part in self.parts.values())

    def map(self, index: int) -> Map:
        """Return the map of an operation that has one."""
        found = self.parts[index].map
        assert found is not None
        return found

    @cached_property
    def last_pass(self) -> Mapping[int, int]:
        """The last pass that reads what each operation makes."""
        last = {self.output: self.num_passes - 1}
        for user, number in self.pass_of.items():
            for index in self.graph.ops[user].inputs:
                last[index] = max(number, last.get(index, 0))
        return last

    def made(self, number: int) -> list[int]:
        """Return the operations that run part by part in a pass, in order."""
        return [
            index
            for index, part in self.parts.items()
            if part.role in (Role.LOCAL, Role.NORM)
            and self.pass_of[index] == number
            and self.graph.ops[index].kind != INPUT
        ]

    def maps_of(self, index: int) -> list[int]:
        """Return those inputs of an operation that are maps."""
        return [each for each in self.graph.ops[index].inputs if self.parts[each].map is not None]


def lay_out(graph: ModelGraph) -> PassGraph:
    """Lay out a graph that was traced at the size of the picture; what cannot be run so is named as an obstacle."""
    _refuse_other_inputs(graph)
    ops = _reaching(graph)
    parts: dict[int, OpPart] = {}
    for op in ops:
        parts[op.index] = _part(op, graph, parts)
    early = _earliest(ops, parts)
    num_passes = max(early.values()) + 1
    pass_of = _assign(ops, parts, early, num_passes)
    kept, pooled = [], []
    for number in range(num_passes):
        kept.append(tuple(_kept(ops, parts, pass_of, number)))
        pooled.append(
            tuple(
                op.index
                for op in ops
                if parts[op.index].role in (Role.POOL, Role.NORM) and early[op.index] == number + 1
            )
        )
    obstacles = _obstacles(graph, ops, parts)
    return PassGraph(graph, parts, pass_of, num_passes, tuple(kept), tuple(pooled), obstacles)


def _reaching(graph: ModelGraph) -> tuple[Op, ...]:
    """Return the operations that must run for the output, also those of which only the shape is taken."""
    wanted = set(graph.outputs)
    for op in reversed(graph.ops):
        if op.index in wanted:
            wanted.update(op.inputs)
    return tuple(op for op in graph.ops if op.index in wanted)


def _part(op: Op, graph: ModelGraph, parts: Mapping[int, OpPart]) -> OpPart:
    if op.kind == INPUT:
        return OpPart(Role.LOCAL, map_at(op.shape, (len(op.shape) - 2, len(op.shape) - 1)))
    return part_of(op, [PassOperand(graph.ops[index], parts[index].map) for index in op.inputs])


def _earliest(ops: Sequence[Op], parts: Mapping[int, OpPart]) -> dict[int, int]:
    """Return the first pass in which each operation can run: what looks at the whole waits for the one before."""
    early: dict[int, int] = {}
    for op in ops:
        waits = parts[op.index].role in (Role.POOL, Role.NORM, Role.WHOLE)
        early[op.index] = max(
            (early[each] + (waits and parts[each].map is not None) for each in op.inputs), default=0
        )
    return early


def _assign(
    ops: Sequence[Op], parts: Mapping[int, OpPart], early: Mapping[int, int], num_passes: int
) -> dict[int, int]:
    """Let maps be made in the pass that keeps the fewest numbers between passes; all else as early as it can.

    What one pass makes and another reads is kept as a whole map. Of two places to cut, behind four branches or before
    the one map that they all read, one may take a fourth of the other.
    """
    by_index = {op.index: op for op in ops}
    mapped = [op.index for op in ops if parts[op.index].map is not None]
    numbers = {index: float(prod(by_index[index].shape)) for index in mapped}
    numbers |= {index: 0.0 for index in mapped if by_index[index].kind == INPUT}  # it is read again
    inputs = {
        index: [each for each in by_index[index].inputs if parts[each].map is not None] for index in mapped
    }
    # what has several outputs is no map that could be kept: they go with it
    whole = {each for index in mapped if by_index[index].kind == "getitem" for each in inputs[index]}
    numbers |= {index: float("inf") for index in whole}
    pass_of = {op.index: early[op.index] for op in ops}
    done = {index for index in mapped if by_index[index].kind == INPUT}
    for number in range(num_passes - 1):
        waiting = [op for op in ops if parts[op.index].role in (Role.POOL, Role.NORM, Role.WHOLE)]
        needed = {
            each
            for op in waiting
            if early[op.index] <= number + 1
            for each in op.inputs
            if parts[each].map is not None
        }
        late = {index for index in mapped if early[index] > number}
        here = cheapest_cut(mapped, inputs, numbers, done | needed, late)
        for index in here - done:
            pass_of[index] = number
        done |= here
    for index in mapped:
        if index not in done:
            pass_of[index] = num_passes - 1
    return pass_of


def _kept(
    ops: Sequence[Op], parts: Mapping[int, OpPart], pass_of: Mapping[int, int], number: int
) -> list[int]:
    """Return the maps that are made in a pass and read in a later one."""
    later = {
        each
        for op in ops
        if pass_of[op.index] > number and parts[op.index].role is not Role.POOL
        for each in op.inputs
    }
    return [
        op.index
        for op in ops
        if op.index in later
        and pass_of[op.index] == number
        and op.kind != INPUT
        and parts[op.index].map is not None
    ]


def _obstacles(graph: ModelGraph, ops: Sequence[Op], parts: Mapping[int, OpPart]) -> tuple[Obstacle, ...]:
    found = []
    for op in ops:
        if op.settings.get("draws"):
            found.append(Obstacle(op.module, op.kind, DRAWN))
        elif op.kind == "as_strided" and parts[op.index].role is Role.WHOLE:
            found.append(Obstacle(op.module, op.kind, _BY_MEMORY))
        elif op.kind != PARAMETER and parts[op.index].role in (Role.PLAIN, Role.WHOLE):
            sizes = [prod(op.shape)]
            sizes += [prod(graph.ops[each].shape) for each in op.inputs if parts[each].map is not None]
            if max(sizes) > HELD_NUMBERS:
                found.append(Obstacle(op.module, op.kind, _NO_SUM))
    output, size = parts[graph.outputs[0]].map, graph.ops[graph.inputs[0]].shape[-2:]
    op = graph.ops[graph.outputs[0]]
    if output is None or output.sizes != size or output.axes != (len(op.shape) - 2, len(op.shape) - 1):
        found.append(Obstacle(op.module, op.kind, "the output is not a map over the picture"))
    return tuple(dict.fromkeys(found))


def _refuse_other_inputs(graph: ModelGraph) -> None:
    shapes = [graph.ops[index].shape for index in graph.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][0] != 1:
        found = ", ".join("x".join(map(str, shape)) for shape in shapes) or "no input"
        needed, remedy = "one picture (1 x bands x height x width)", "trace with one picture"
        raise TraceError(explain("passes cannot be laid out for these inputs", found, needed, remedy))
