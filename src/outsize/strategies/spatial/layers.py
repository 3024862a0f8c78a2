"""Runs a model on a part of a picture as if it saw all of it.

torch's functions that look at neighbouring rows and columns, or at all of them, are replaced while a model runs,
forward and backward; what computes each pixel from itself is left alone. The model is not touched: names, parameters
and modules are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from outsize.strategies.spatial.borders import Need, with_borders
from outsize.strategies.spatial.shard import COLS, ROWS, Shard
from outsize.strategies.spatial.sliding import Sliding, refuse, slide
from outsize.strategies.spatial.whole import WHOLE


class Spread(TorchFunctionMode):
    """Replaces what looks at other rows and columns, and refuses what does so in a way that is not known."""

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self._shard = shard

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            return rule(self._shard, *args, **given)
        name = getattr(func, "__name__", "")
        if name in _REFUSED and any(isinstance(each, Tensor) and each.dim() == 4 for each in args):
            refuse(f"torch's {name}", "layers that look at neighbours, and means and norms over the picture")
        return func(*args, **given)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _sliding(
    sides: tuple[int, int], steps: Any, pads: Any, apart: Any = 1, fill: float = 0.0, *, ceil: bool = False
) -> tuple[Sliding, Sliding]:
    by_axis = zip(sides, _pair(steps), _pair(pads), _pair(apart), strict=True)
    rows, cols = (Sliding(gap * (side - 1) + 1, step, pad, fill, ceil) for side, step, pad, gap in by_axis)
    return rows, cols


def _conv2d(
    shard: Shard,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    sides = (int(weight.shape[2]), int(weight.shape[3]))
    ways = _sliding(sides, stride, 0 if isinstance(padding, str) else padding, dilation)
    if padding == "same":
        if any(way.reach % 2 == 0 for way in ways):
            refuse("padding 'same' of an even kernel", "the same padding on both sides")
        ways = (ways[0]._replace(padding=ways[0].reach // 2), ways[1]._replace(padding=ways[1].reach // 2))
    return slide(
        shard,
        input,
        ways,
        lambda part, pads: functional.conv2d(
            part, weight, bias, _pair(stride), pads, _pair(dilation), groups
        ),
    )


def _max_pool2d(
    shard: Shard,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    if return_indices:
        refuse("max pooling that tells places", "pooling without places")
    sides, steps, apart = _pair(kernel_size), _pair(stride or kernel_size), _pair(dilation)
    ways = _sliding(sides, steps, padding, apart, float("-inf"), ceil=ceil_mode)

    def pool(part: Tensor, pads: tuple[int, int]) -> Tensor:
        found: Tensor = functional.max_pool2d(part, sides, steps, pads, apart, ceil_mode)
        return found

    return slide(shard, input, ways, pool)


def _avg_pool2d(
    shard: Shard,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    sides, steps = _pair(kernel_size), _pair(stride or kernel_size)
    if ceil_mode or (any(_pair(padding)) and not count_include_pad):
        refuse("average pooling of parts of windows", "whole windows, whose padding counts")
    return slide(
        shard,
        input,
        _sliding(sides, steps, padding),
        lambda part, pads: functional.avg_pool2d(part, sides, steps, pads, False, True, divisor_override),
    )


def _conv_transpose2d(  # noqa: PLR0913, PLR0917 (torch's arguments)
    shard: Shard,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Enlarge own and border rows: row i adds to results i x stride - padding and on; of those the own are kept."""
    sides = (int(weight.shape[2]), int(weight.shape[3]))
    ways, extra = _sliding(sides, stride, padding, dilation), _pair(output_padding)
    around, kept, pads, more = input, {}, [*_pair(padding)], [*extra]
    for axis, way, its_extra in zip((ROWS, COLS), ways, extra, strict=True):
        side, num, number = shard.side(axis), input.shape[axis], axis - ROWS
        if side.is_whole:
            continue
        need = Need(max(0, (way.reach - 1 - way.padding) // way.stride), -(-way.padding // way.stride))
        around = with_borders(around, need, shard, axis)
        begin = (0 if side.before is None else need.before) * way.stride + way.padding
        count = num * way.stride
        if side.after is None:
            count = (num - 1) * way.stride - 2 * way.padding + way.reach + its_extra
        # rows that nothing is added to
        missing = max(0, begin + count - (around.shape[axis] - 1) * way.stride - way.reach)
        kept[axis], pads[number], more[number] = (begin, count), 0, missing
    large = functional.conv_transpose2d(
        around, weight, bias, _pair(stride), tuple(pads), tuple(more), groups, _pair(dilation)
    )
    for axis, (begin, count) in kept.items():
        large = large.narrow(axis, begin, count)
    return large


def _interpolate(
    shard: Shard,
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Enlarge a whole number of times: bilinear looks at one row on each side, which at the ends is repeated."""
    if size is None:
        given = (scale_factor, scale_factor) if isinstance(scale_factor, int | float) else scale_factor
        times = (float(given[0]), float(given[-1]))
    else:
        high, wide = (int(a) / int(b) for a, b in zip(_pair(size), input.shape[2:], strict=True))
        times = (high, wide)
    is_known = mode in ("nearest", "bilinear") and not (align_corners or recompute_scale_factor or antialias)
    split = [axis for axis in (ROWS, COLS) if not shard.side(axis).is_whole]
    if not is_known or any(times[axis - ROWS] != int(times[axis - ROWS]) for axis in split):
        found = f"interpolate by {times[0]:g}, {mode}, align_corners={align_corners}"
        refuse(found, "nearest or bilinear enlarging by a whole number, align_corners=False")
    edge, around = 1 if mode == "bilinear" else 0, input
    for axis in split:
        around = with_borders(around, Need(edge, edge), shard, axis)
    large = functional.interpolate(around, scale_factor=times, mode=mode, align_corners=align_corners)
    for axis in split:
        factor = int(times[axis - ROWS])
        begin = 0 if shard.side(axis).before is None else edge * factor
        large = large.narrow(axis, begin, input.shape[axis] * factor)
    return large


def _pad(shard: Shard, input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Fill up where the picture ends; rows between parts would be torn apart."""
    amounts = [int(each) for each in pad]
    for axis in (ROWS, COLS):
        first = 2 * (input.dim() - 1 - axis)
        before, after = amounts[first : first + 2] if len(amounts) > first else (0, 0)
        if input.dim() == 4 and not shard.side(axis).is_whole:  # noqa: SIM102
            if before or (after and shard.side(axis).after is not None):
                refuse(
                    "padding as a function of its own",
                    "padding by the layers themselves, or to fill a picture up",
                )
    return functional.pad(input, amounts, mode, value)


_RULES: dict[Any, Callable[..., Any]] = {
    functional.conv2d: _conv2d,
    functional.conv_transpose2d: _conv_transpose2d,
    functional.max_pool2d: _max_pool2d,
    functional.avg_pool2d: _avg_pool2d,
    functional.interpolate: _interpolate,
    functional.pad: _pad,
    **WHOLE,
}
_REFUSED = {
    "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices", "amax", "amin", "cumsum", "flip", "fold", "grid_sample",
    "lp_pool2d", "max", "min", "roll", "std", "sum", "unfold", "var", "var_mean", "softmax", "log_softmax",
}  # fmt: skip
