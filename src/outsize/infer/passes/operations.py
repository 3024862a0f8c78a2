"""Runs one operation of a graph on a part of its maps, so that it gives that part of what it gives on the whole.

What lies outside of the whole picture's map is padded here as the operation pads it; what lies outside of a part, but
inside of the map, is in the part already: the walk has asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from outsize.graph import Op
from outsize.infer.passes.keep import cut
from outsize.infer.passes.program import Program
from outsize.infer.passes.resize import resize
from outsize.tiles.arguments import pad_amounts, slice_of
from outsize.tiles.passes import Map, PassGraph, Role
from outsize.tiles.window import Window


@dataclass(frozen=True)
class TileValues:
    """Where a tile is: what there is of each map, and what is there as a whole."""

    program: Program
    regions: Mapping[int, Window]
    values: Mapping[int, Any]  # parts of maps, as large as their regions, and whole values
    device: torch.device

    @property
    def laid(self) -> PassGraph:
        """The passes that its operations run in."""
        return self.program.laid


def run(index: int, at: TileValues) -> Any:
    """Return what an operation makes of its region; of one that runs once, all."""
    op = at.laid.graph.ops[index]
    if at.laid.parts[index].role in (Role.PLAIN, Role.WHOLE):
        return _call(at, index, lambda source: at.values[source])
    return _RUNS.get(op.kind, _pointwise)(_Run(op, at))


class _Run:
    """One operation on one tile: its settings, its operands, and where its output lies."""

    def __init__(self, op: Op, at: TileValues) -> None:
        self.op, self.at = op, at
        self.map = at.laid.map(op.index)
        self.out = at.regions[op.index]
        self.node = at.program.nodes[op.index]
        self.source = op.inputs[0]

    def named(self) -> dict[str, Any]:
        """Return the arguments by their names, as nodes and numbers."""
        return self.at.program.arguments(self.op.index)

    def weight(self, name: str) -> Tensor | None:
        """Return a tensor that is there as a whole, by the name of the argument."""
        node = self.named().get(name)
        return None if node is None else self.at.values[self.at.program.index_of[node.name]]

    @property
    def first(self) -> Map:
        """The map of the first operand."""
        return self.at.laid.map(self.source)

    def spans(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the rows and columns of the first operand that the output needs, also those outside of its map."""
        rows, cols = self.at.laid.parts[self.op.index].needs
        return rows(self.out.row, self.out.row_end), cols(self.out.col, self.out.col_end)

    def exactly(
        self, spans: tuple[tuple[int, int], tuple[int, int]]
    ) -> tuple[Tensor, tuple[int, int, int, int]]:
        """Return the first operand cut to spans, and how much of them lies outside of its map (for F.pad)."""
        clipped = [_clipped(lo, hi, size) for (lo, hi), size in zip(spans, self.first.sizes, strict=True)]
        (top, bottom), (left, right) = clipped
        part = self.cut(self.source, Window(top, left, bottom - top, right - left))
        down, across = spans
        return part, (left - across[0], across[1] - right, top - down[0], down[1] - bottom)

    def cut(self, index: int, window: Window) -> Any:
        """Return a window of an operand, given in rows and columns of its map; of length one where the map is."""
        place, have = self.at.laid.map(index), self.at.regions[index]
        sizes = place.sizes
        row, height = (0, 1) if sizes[0] == 1 else (window.row, window.height)
        col, width = (0, 1) if sizes[1] == 1 else (window.col, window.width)
        value = self.at.values[index]
        if (row, col, height, width) == (have.row, have.col, have.height, have.width):
            return value
        inside = Window(row - have.row, col - have.col, height, width)
        if isinstance(value, Tensor):
            return cut(value, place, inside)
        return tuple(None if each is None else cut(each, place, inside) for each in value)


def _clipped(lo: int, hi: int, size: int) -> tuple[int, int]:
    """Return what of an interval lies in a map, at least one row."""
    lo = min(max(lo, 0), size - 1)
    return lo, max(min(hi, size), lo + 1)


def _padded(
    part: Tensor, axes: tuple[int, int], outside: tuple[int, int, int, int], value: float = 0.0
) -> Tensor:
    """Fill up rows and columns: columns before and after come first, as in F.pad.

    Where all that is wanted lies outside of the map, more is cut off on one side than there is: nothing of it is left.
    """
    rows, cols = (axis % part.dim() for axis in axes)
    amounts = [0] * (2 * part.dim())
    for axis, (before, after) in ((cols, outside[:2]), (rows, outside[2:])):
        if min(before, after) < 0:
            shape = list(part.shape)
            shape[axis] += before + after
            part = part.new_full(shape, value)
        else:
            start = 2 * (part.dim() - 1 - axis)
            amounts[start : start + 2] = before, after
    return F.pad(part, amounts, value=value) if any(amounts) else part


def _call(at: TileValues, index: int, value_of: Callable[[int], Any]) -> Any:
    """Call an operation as the graph does, with other values; what it makes on a device is made on this one."""

    def given(value: Any) -> Any:
        return at.device if isinstance(value, torch.device) else value

    node = at.program.nodes[index]
    args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), given)
    args, kwargs = fx.node.map_arg((args, kwargs), lambda each: value_of(at.program.index_of[each.name]))
    target: Any = node.target
    if target in _VIEWS:  # a map may lie channels last here, and did not when the graph was made
        target = torch.ops.aten.reshape.default
    return target(*args, **kwargs)


_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def _pointwise(run: _Run) -> Any:
    """All that needs the same rows and columns of its maps, and of what is there as a whole as many or one."""
    num_dims = len(run.op.shape)

    def value_of(index: int) -> Any:
        if run.at.laid.parts[index].map is not None:
            return run.cut(index, run.out)
        return _spread(run.at.values[index], run.map, num_dims, run.out)

    return _call(run.at, run.op.index, value_of)


def _spread(value: Any, place: Map, num_dims: int, out: Window) -> Any:
    """Cut a whole tensor that is as large as the map where it is so."""
    if not isinstance(value, Tensor):
        return value
    for axis, size, start, length in zip(
        place.axes, place.sizes, (out.row, out.col), (out.height, out.width), strict=True
    ):
        own = axis - num_dims + value.dim()
        if own >= 0 and value.shape[own] == size and size > 1:
            value = value.narrow(own, start, length)
    return value


def _weighted(run: _Run) -> Any:
    """The first operand by weights that are there as a whole."""
    at = run.at
    return _call(
        at,
        run.op.index,
        lambda index: at.values[index] if at.laid.parts[index].map is None else run.cut(index, run.out),
    )


def _joined(run: _Run) -> Any:
    """Concatenate and the like: what is there as a whole lies as the maps do, before an axis is added or taken."""
    at = run.at
    first = next(index for index in run.op.inputs if at.laid.parts[index].map is not None)
    place, num_dims = at.laid.map(first), len(at.laid.graph.ops[first].shape)

    def value_of(index: int) -> Any:
        if at.laid.parts[index].map is not None:
            return run.cut(index, run.out)
        return _spread(at.values[index], place, num_dims, run.out)

    return _call(at, run.op.index, value_of)


def _item(run: _Run) -> Any:
    return run.cut(run.source, run.out)[run.op.settings["item"]]


def _conv(run: _Run) -> Tensor:
    part, (left, right, top, bottom) = run.exactly(run.spans())
    padding = [top, left]
    if (left, top) != (right, bottom) or min(left, top) < 0:
        part, padding = _padded(part, (-2, -1), (left, right, top, bottom)), [0, 0]
    weight, op = run.weight("weight"), run.op
    assert weight is not None
    return torch.convolution(
        part,
        weight,
        run.weight("bias"),
        op.ints("stride"),
        padding,
        op.ints("dilation"),
        False,
        (0, 0),
        int(run.named().get("groups", 1)),
    )


def _conv_transposed(run: _Run) -> Tensor:
    """Spread what lies in the map; the padding of a transposed convolution is what is cut off of its output."""
    op, spans = run.op, run.spans()
    clipped = tuple(_clipped(lo, hi, size) for (lo, hi), size in zip(spans, run.first.sizes, strict=True))
    part, _ = run.exactly(clipped)  # type: ignore[arg-type]
    starts, more = [], []
    for which, (lo, hi) in enumerate(clipped):
        stride, padding = op.ints("stride")[which], op.ints("padding")[which]
        reach = op.ints("dilation")[which] * (op.ints("kernel")[which] - 1)
        wanted_end = (run.out.row_end, run.out.col_end)[which]
        starts.append((run.out.row, run.out.col)[which] - (lo * stride - padding))
        more.append(max(0, wanted_end - ((hi - 1) * stride - padding + reach + 1)))
    weight = run.weight("weight")
    assert weight is not None
    groups = int(run.named().get("groups", 1))
    made = torch.convolution(
        part, weight, run.weight("bias"), op.ints("stride"), (0, 0), op.ints("dilation"), True, more, groups
    )
    return made[..., starts[0] : starts[0] + run.out.height, starts[1] : starts[1] + run.out.width]


def _max_pool(run: _Run) -> Any:
    part, outside = run.exactly(run.spans())
    part, op = _padded(part, (-2, -1), outside, float("-inf")), run.op
    made = F.max_pool2d(part, op.ints("kernel"), op.ints("stride"), 0, op.ints("dilation"))
    return (made, None) if isinstance(run.node.meta["val"], tuple) else made


def _avg_pool(run: _Run) -> Tensor:
    """Means over windows; those over the border count fewer pixels, or padding too, but no more than there is."""
    part, outside = run.exactly(run.spans())
    named, op = run.named(), run.op
    kernel, stride = op.ints("kernel"), op.ints("stride")
    part = _padded(part, (-2, -1), outside)
    divisor = named.get("divisor_override")
    made = F.avg_pool2d(part, kernel, stride, 0, divisor_override=divisor)
    if divisor is not None or not any(outside):
        return made
    counts = []
    for which, (lo, hi) in enumerate(run.spans()):
        beyond = op.ints("padding")[which] if named.get("count_include_pad", True) else 0
        places = torch.arange(lo, hi, device=part.device)
        counted = (places >= -beyond) & (places < run.first.sizes[which] + beyond)
        counts.append(counted.to(part.dtype).unfold(0, kernel[which], stride[which]).sum(-1))
    return made * (kernel[0] * kernel[1]) / (counts[0][:, None] * counts[1])


def _resize(run: _Run) -> Tensor:
    wanted = range(run.out.row, run.out.row_end), range(run.out.col, run.out.col_end)
    at, index = run.at, run.source
    if at.laid.parts[index].map is None:
        sizes = at.laid.graph.ops[index].shape[-2:]
        return resize(run.op, at.values[index], starts=(0, 0), sizes=(sizes[0], sizes[1]), wanted=wanted)
    have = at.regions[index]
    starts = have.row, have.col
    return resize(run.op, at.values[index], starts=starts, sizes=run.first.sizes, wanted=wanted)


def _shuffle(run: _Run) -> Tensor:
    """Channels to pixels: a part may begin within a pixel of the map that is spread."""
    (top, bottom), (left, right) = run.spans()
    factor = run.op.ints("upscale_factor")[0]
    part = run.cut(run.source, Window(top, left, bottom - top, right - left))
    made = F.pixel_shuffle(part, factor)
    row, col = run.out.row - top * factor, run.out.col - left * factor
    return made[..., row : row + run.out.height, col : col + run.out.width]


def _unshuffle(run: _Run) -> Tensor:
    part, _ = run.exactly(run.spans())
    return F.pixel_unshuffle(part, run.op.ints("downscale_factor")[0])


def _pad(run: _Run) -> Any:
    op = run.op
    amounts, num_dims = op.ints("amounts"), len(op.shape)
    others = [0] * (2 * num_dims)  # along axes that are neither rows nor columns, as it is
    for axis in set(range(num_dims)) - set(run.map.axes):
        others[2 * (num_dims - 1 - axis) : 2 * (num_dims - axis)] = pad_amounts(amounts, num_dims, axis)
    if op.settings["mode"] == "constant":
        value = float(run.named().get("value") or 0.0)
        part, outside = run.exactly(run.spans())
        part = _padded(part, run.map.axes, outside, value)
        return F.pad(part, others, value=value) if any(others) else part
    part, have = run.at.values[run.source], run.at.regions[run.source]
    for which, axis in enumerate(run.map.axes):
        before, _ = pad_amounts(amounts, num_dims, axis)
        size = run.first.sizes[which]
        start, length = ((run.out.row, run.out.height), (run.out.col, run.out.width))[which]
        places = torch.arange(start - before, start - before + length, device=part.device)
        if op.settings["mode"] == "reflect":
            places = places.abs()
            places = torch.where(places >= size, 2 * (size - 1) - places, places)
        places = places.clamp(0, size - 1) - (have.row, have.col)[which]
        part = part.index_select(axis, places)
    return part


def _take(run: _Run) -> Any:
    axis, _, step = slice_of(run.op, run.at.laid.graph.ops[run.source].shape)
    part, _ = run.exactly(run.spans())
    if axis not in run.first.axes:
        return _call(run.at, run.op.index, lambda _: part)
    return part[(slice(None),) * axis + (slice(None, None, step),)]


def _shaped(run: _Run) -> Any:
    """To the shape of the whole, but for rows and columns."""
    shape = list(run.op.shape)
    for axis, length in zip(run.map.axes, (run.out.height, run.out.width), strict=True):
        shape[axis] = length
    part = run.cut(run.source, run.out)
    return part.reshape(shape) if run.op.kind == "reshape" else part.expand(shape)


def _norm(run: _Run) -> Any:
    """Normalise by the statistics of the whole picture, which are there by now."""
    at, part = run.at, run.cut(run.source, run.out)
    if at.laid.parts[run.op.index].role is Role.LOCAL:
        return _weighted(run)
    mean, scale = at.values[run.op.index]
    weight, bias = run.weight("weight"), run.weight("bias")
    if weight is not None:
        scale = scale * weight.view(1, -1, 1, 1)
    made = (part - mean.to(part.dtype)) * scale.to(part.dtype)
    return made if bias is None else made + bias.view(1, -1, 1, 1)


_RUNS: dict[str, Callable[[_Run], Any]] = {
    **dict.fromkeys(("prelu", "dropout", "channel_shuffle", "native_channel_shuffle"), _weighted),
    **dict.fromkeys(("linear", "matmul", "layer_norm", "batch_norm", "index", "index_select"), _weighted),
    **dict.fromkeys(("cat", "concat", "stack"), _joined),
    **dict.fromkeys(("reshape", "expand", "broadcast_to"), _shaped),
    **dict.fromkeys(("group_norm", "instance_norm"), _norm),
    "getitem": _item,
    "conv": _conv,
    "conv_transposed": _conv_transposed,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "upsample": _resize,
    "pixel_shuffle": _shuffle,
    "pixel_unshuffle": _unshuffle,
    "pad": _pad,
    "slice": _take,
}
