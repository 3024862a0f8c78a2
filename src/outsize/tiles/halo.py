"""How far a model looks around each pixel, walked backwards through its graph; what looks everywhere is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, lcm
from typing import Any

from outsize.errors import TraceError, explain
from outsize.graph import ModelGraph, Op
from outsize.tiles.places import BATCH, COLS, ROWS, OpNeeds
from outsize.tiles.sizes import OTHER_OPERATIONS, OTHER_PLACES, moved_of, parting_of, settled
from outsize.tiles.walk import reaching, sources_of, walk_forwards


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
    index: int = -1  # of the operation in the graph; what was found by trying has none

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


def halo_from_dict(tree: dict[str, Any]) -> Halo:
    """Read the JSON form back."""
    rows, cols = Reach(**tree["rows"]), Reach(**tree["cols"])
    numbers = [rows.before_px, rows.after_px, cols.before_px, cols.after_px, tree["stride_px"] - 1]
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError(f"a halo of {numbers}")
    return Halo(rows, cols, tree["stride_px"], tuple(Obstacle(**each) for each in tree["obstacles"]))


def derive_halo(graph: ModelGraph, twin: ModelGraph | None = None) -> Halo:
    """Find what a core needs around it: forwards for where rows and columns go, backwards for how far is looked.

    `twin` is the graph of the same model for a picture of another size: whatever differs depends on the size. Where
    there are obstacles, the reach is that of all other operations. A model whose output has not the height and width of
    its input is refused.
    """
    size = _input_size(graph)
    ops: Sequence[Op] = reaching(graph)
    others: Sequence[Op] | None = None if twin is None else reaching(twin)
    parting = None if others is None else parting_of(ops, others)
    if others is not None and parting is None:
        ops, others = settled(ops, others), settled(others, ops)
    obstacles = (
        [] if parting is None else [Obstacle(parting.module, parting.kind, OTHER_OPERATIONS, parting.index)]
    )
    steps = walk_forwards(ops, size, None if parting else others)
    for op in ops:
        if op.index in steps and (reason := steps[op.index].reason) is not None:
            obstacles.append(Obstacle(op.module, op.kind, reason, op.index))
    if twin is not None and others is not None and parting is None:
        elsewhere = walk_forwards(others, _input_size(twin), None)
        moved = moved_of(ops, others, (steps, size), (elsewhere, _input_size(twin)))
        obstacles += [Obstacle(op.module, op.kind, OTHER_PLACES, op.index) for op in moved]
    for index in graph.outputs:
        obstacles += _check_output(graph.ops[index], steps.get(index), size, is_known=not obstacles)
    stride_px = lcm(*(scale.numerator for each in steps.values() for scale in each.place.scales))
    rows, cols = (_walk_backwards(graph, ops, steps, stride_px, which) for which in (0, 1))
    return Halo(rows, cols, stride_px, tuple(sorted(dict.fromkeys(obstacles), key=lambda each: each.index)))


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


def _check_output(
    op: Op, made_by: OpNeeds | None, size: tuple[int, int], *, is_known: bool
) -> list[Obstacle]:
    if made_by is not None and made_by.place.axes is None:
        return [Obstacle(op.module, op.kind, "the output is not a map over the picture", op.index)]
    if made_by is not None and made_by.place.sizes == size and any(x != 1 for x in made_by.place.scales):
        reason = "the output is resized to the picture's size by another factor than its maps are smaller by"
        return [Obstacle(op.module, op.kind, reason, op.index)]
    if made_by is None or made_by.place.sizes != size:
        found = " x ".join(map(str, op.shape))
        needed = f"height and width of the input, {size[0]} x {size[1]}"
        raise TraceError(
            explain("the model's output cannot be tiled", found, needed, "resize inside the model")
        )
    axes = made_by.place.known
    if axes[-2:] != ((ROWS,), (COLS,)):
        return [Obstacle(op.module, op.kind, "the output's last two axes are not rows and columns", op.index)]
    if is_known and made_by.place.batch > 1 and axes[0] != (BATCH,):
        return [Obstacle(op.module, op.kind, "the output's first axis is not that of the samples", op.index)]
    return []


def _walk_backwards(
    graph: ModelGraph, ops: Sequence[Op], steps: dict[int, OpNeeds], core_px: int, which: int
) -> Reach:
    """Ask for the core at every output and collect what that asks of the input, along one axis.

    Needs do not depend on the core's length: its start decides what is needed before, its end what after.
    """
    wanted: dict[int, tuple[int, int]] = dict.fromkeys(graph.outputs, (0, core_px))
    length_px = _input_size(graph)[which]
    asked: list[tuple[Fraction | int, Fraction | int]] = []
    for op in reversed(ops):
        if op.index not in wanted or op.index not in steps:
            continue
        lo, hi = wanted[op.index]
        place = steps[op.index].place
        if steps[op.index].crops:
            # of a window it leaves so much less, where padding may follow: the window must end beyond what is wanted
            scale = place.scales[which]
            beyond = place.sizes[which] - length_px / scale
            asked.append((lo * scale, (hi - beyond) * scale))
        lo, hi = steps[op.index].needs[which](lo, hi)
        for index in sources_of(op):
            known_lo, known_hi = wanted.get(index, (lo, hi))
            wanted[index] = min(lo, known_lo), max(hi, known_hi)
    asked += [wanted[index] for index in graph.inputs if index in wanted]
    before_px = max((-floor(lo) for lo, _ in asked), default=0)
    after_px = max((ceil(hi) - core_px for _, hi in asked), default=0)
    return Reach(max(0, before_px), max(0, after_px))
