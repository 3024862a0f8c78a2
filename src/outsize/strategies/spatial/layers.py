"""Runs a model on some rows of a picture as if it saw all of them.

torch's functions that look at neighbouring rows, or at all of them, are replaced while a model's forward runs; what
computes each pixel from itself is left alone. The model is not touched: names, parameters and modules are its own.

A result's row o looks at rows o x stride - padding and on. It is made by the rank that holds row o x stride, so
each needs `padding` rows from above and `reach - stride - padding` from below, where a negative number is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from outsize.errors import ModelError, explain
from outsize.strategies.replicate import batch_norm_over_ranks
from outsize.strategies.spatial.borders import Need, with_borders
from outsize.strategies.spatial.rows import Rows


@contextmanager
def spread_rows(rows: Rows) -> Iterator[None]:
    """Let torch's functions inside see the rows of other ranks as well; every rank is inside of such a block."""
    with _Spread(rows):
        yield


class _Spread(TorchFunctionMode):
    """Replaces what looks at other rows, and refuses what does so in a way that is not known."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self._rows = rows

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
            return rule(self._rows, *args, **given)
        name = getattr(func, "__name__", "")
        if name in _REFUSED and any(isinstance(each, Tensor) and each.dim() == 4 for each in args):
            _refuse(f"torch's {name}", "layers that look at neighbours, and means and norms over the picture")
        return func(*args, **given)


def _refuse(found: str, needed: str) -> NoReturn:
    raise ModelError(explain("a picture cannot be spread over ranks", found, needed, "run it on one rank"))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _around(
    inputs: Tensor,
    rows: Rows,
    reach: int,
    stride: int,
    padding: int,
    fill: float = 0.0,
    *,
    ceil: bool = False,
) -> Tensor:
    """Return the rows that this rank's part of the results looks at; outside of the picture they are `fill`."""
    num = inputs.shape[2]
    if num % stride and not rows.at_bottom:
        _refuse(
            f"{num} rows on a rank before a stride of {stride}", "rows in multiples of the network's stride"
        )
    bottom = reach - stride - padding
    around = with_borders(inputs, Need(padding, max(0, bottom)), rows)
    if rows.at_bottom:  # as torch counts the results of the whole
        free = num + 2 * padding - reach
        steps = (
            -(-free // stride) if ceil and (-(-free // stride)) * stride < num + padding else free // stride
        )
        bottom = steps * stride + reach - padding - num
    outside = (padding if rows.at_top else 0, bottom if rows.at_bottom or bottom < 0 else 0)
    return functional.pad(around, (0, 0, *outside), value=fill) if any(outside) else around


def _conv2d(
    rows: Rows,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    steps, apart = _pair(stride), _pair(dilation)
    reach = [each * (side - 1) + 1 for each, side in zip(apart, weight.shape[2:], strict=True)]
    if isinstance(padding, str):
        if padding == "same" and (reach[0] % 2 == 0 or reach[1] % 2 == 0):
            _refuse("padding 'same' of an even kernel", "the same padding on both sides")
        pads = (reach[0] // 2, reach[1] // 2) if padding == "same" else (0, 0)
    else:
        pads = _pair(padding)
    around = _around(input, rows, reach[0], steps[0], pads[0])
    return functional.conv2d(around, weight, bias, steps, (0, pads[1]), apart, groups)


def _max_pool2d(
    rows: Rows,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    if return_indices:
        _refuse("max pooling that tells places", "pooling without places")
    sides, pads, apart = _pair(kernel_size), _pair(padding), _pair(dilation)
    steps = _pair(stride or kernel_size)
    reach = apart[0] * (sides[0] - 1) + 1
    around = _around(input, rows, reach, steps[0], pads[0], float("-inf"), ceil=ceil_mode)
    result: Tensor = functional.max_pool2d(around, sides, steps, (0, pads[1]), apart, ceil_mode)
    return result


def _avg_pool2d(
    rows: Rows,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    sides, pads = _pair(kernel_size), _pair(padding)
    if ceil_mode or (pads[0] and not count_include_pad):
        _refuse("average pooling of parts of windows", "whole windows, whose padding counts")
    steps = _pair(stride or kernel_size)
    around = _around(input, rows, sides[0], steps[0], pads[0])
    return functional.avg_pool2d(around, sides, steps, (0, pads[1]), False, True, divisor_override)


def _conv_transpose2d(  # noqa: PLR0913, PLR0917 (torch's arguments)
    rows: Rows,
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
    steps, pads, extra, apart = _pair(stride), _pair(padding), _pair(output_padding), _pair(dilation)
    reach, num = apart[0] * (weight.shape[2] - 1) + 1, input.shape[2]
    need = Need(max(0, (reach - 1 - pads[0]) // steps[0]), -(-pads[0] // steps[0]))
    around = with_borders(input, need, rows)
    begin = (0 if rows.at_top else need.top) * steps[0] + pads[0]
    count = (num - 1) * steps[0] - 2 * pads[0] + reach + extra[0] if rows.at_bottom else num * steps[0]
    missing = max(
        0, begin + count - (around.shape[2] - 1) * steps[0] - reach
    )  # rows that nothing is added to
    large = functional.conv_transpose2d(
        around, weight, bias, steps, (0, pads[1]), (missing, extra[1]), groups, apart
    )
    return large[:, :, begin : begin + count]


def _interpolate(
    rows: Rows,
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
        high, wide = float(given[0]), float(given[-1])
    else:
        high, wide = (int(a) / int(b) for a, b in zip(_pair(size), input.shape[2:], strict=True))
    is_known = mode in ("nearest", "bilinear") and not (align_corners or recompute_scale_factor or antialias)
    if not is_known or high != int(high):
        found = f"interpolate by {high:g}, {mode}, align_corners={align_corners}"
        _refuse(found, "nearest or bilinear enlarging by a whole number, align_corners=False")
    times, edge = int(high), 1 if mode == "bilinear" else 0
    around = with_borders(input, Need(edge, edge), rows)
    large = functional.interpolate(around, scale_factor=(high, wide), mode=mode, align_corners=align_corners)
    begin = 0 if rows.at_top else edge * times
    return large[:, :, begin : begin + input.shape[2] * times]


def _adaptive_avg_pool2d(rows: Rows, input: Tensor, output_size: Any) -> Tensor:
    if output_size not in (1, (1, 1), [1, 1]):
        _refuse(f"pooling to {output_size}", "pooling to 1 x 1")
    return _mean(rows, input, (2, 3), keepdim=True)


def _mean(rows: Rows, input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Take a mean over rows of all ranks; a mean over other axes is this rank's own."""
    axes = [each % input.dim() for each in ((dim,) if isinstance(dim, int) else dim or range(input.dim()))]
    if input.dim() != 4 or 2 not in axes:
        return torch.mean(input, axes, keepdim, dtype=dtype)
    # as a sum over parts: each rank may hold another number of rows
    share = input.shape[2] / _height(input.shape[2], input.device)
    del rows
    result: Tensor = _SumOverRanks.apply(torch.mean(input, axes, keepdim, dtype=dtype) * share)
    return result


def _height(num_rows: int, device: torch.device) -> float:
    total = torch.tensor(float(num_rows), dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return float(total)


class _SumOverRanks(torch.autograd.Function):
    """A sum over ranks; what it gets as gradient is summed over them, too, for all of them use it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:  # noqa: ARG004 (as torch has it)
        total = inputs.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        total = grad.clone()
        dist.all_reduce(total)
        return total


def _batch_norm(rows: Rows, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG001 (as all rules)
    return batch_norm_over_ranks(*args, **kwargs)


def _dropout(rows: Rows, input: Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> Tensor:  # noqa: ARG001
    if training and p:
        _refuse("dropout", "no dropout: each rank would draw for itself")
    return input


_RULES: dict[Any, Callable[..., Any]] = {
    functional.conv2d: _conv2d,
    functional.conv_transpose2d: _conv_transpose2d,
    functional.max_pool2d: _max_pool2d,
    functional.avg_pool2d: _avg_pool2d,
    functional.interpolate: _interpolate,
    functional.adaptive_avg_pool2d: _adaptive_avg_pool2d,
    functional.batch_norm: _batch_norm,
    functional.dropout: _dropout,
    functional.dropout2d: _dropout,
    torch.mean: _mean,
    Tensor.mean: _mean,
}
_REFUSED = {
    "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices", "amax", "amin", "cumsum", "flip", "fold", "grid_sample",
    "group_norm", "instance_norm", "lp_pool2d", "max", "min", "roll", "std", "sum", "unfold", "var", "var_mean",
}  # fmt: skip
