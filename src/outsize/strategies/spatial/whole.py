"""What looks at a picture as a whole, from its parts: means, norms, and dropout, which draws for all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from outsize.strategies.replicate import batch_norm_over_ranks, normalised
from outsize.strategies.spatial.shard import COLS, ROWS, Shard
from outsize.strategies.spatial.sliding import refuse


def _adaptive_avg_pool2d(shard: Shard, input: Tensor, output_size: Any) -> Tensor:
    if output_size not in (1, (1, 1), [1, 1]):
        refuse(f"pooling to {output_size}", "pooling to 1 x 1")
    return _mean(shard, input, (2, 3), keepdim=True)


def _mean(
    shard: Shard, input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Take a mean over rows and columns of all ranks; a mean over other axes is this rank's own."""
    axes = [each % input.dim() for each in ((dim,) if isinstance(dim, int) else dim or range(input.dim()))]
    split = [axis for axis in (ROWS, COLS) if not shard.side(axis).is_whole]
    if input.dim() != 4 or not set(axes) & {ROWS, COLS}:
        return torch.mean(input, axes, keepdim, dtype=dtype)
    if not set(split) <= set(axes):
        refuse(f"a mean over axes {axes}", "a mean over rows and columns together")
    # as a sum over parts: each rank may hold another number of pixels
    num_px = float(input.shape[ROWS] * input.shape[COLS])
    all_px = shard.gathered(torch.full((1,), num_px, dtype=torch.float64, device=input.device)).sum()
    part = torch.mean(input, axes, keepdim, dtype=dtype)
    result: Tensor = _SumOverRanks.apply(part * (num_px / all_px).to(part.dtype), shard)
    return result


class _SumOverRanks(torch.autograd.Function):
    """A sum over the ranks of a picture; what it gets as gradient is summed over them, too, for all of them use it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard.gathered(inputs.reshape(-1)).sum(0).view(inputs.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shard.gathered(grad.reshape(-1)).sum(0).view(grad.shape), None


def _batch_norm(shard: Shard, *args: Any, **kwargs: Any) -> Tensor:
    return batch_norm_over_ranks(*args, **kwargs, world=shard.everyone)


def _group_norm(
    shard: Shard,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Norm each group of channels of each sample: a batch norm, once those are its channels."""
    return _normed(shard, input, num_groups, weight, bias, eps)


def _instance_norm(shard: Shard, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    names = ("running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    if not given.get("use_input_stats", True):
        return functional.instance_norm(input, **given)
    if given.get("running_mean") is not None:
        refuse("instance norm that tracks statistics", "one that does not")
    return _normed(
        shard, input, input.shape[1], given.get("weight"), given.get("bias"), given.get("eps", 1e-5)
    )


def _normed(
    shard: Shard, input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    flat = input.reshape(1, input.shape[0] * num_groups, -1)
    found = normalised(flat, None, None, eps, shard.gathered)[0].reshape(input.shape)
    by_channel = (1, -1, 1, 1)
    if weight is not None:
        found = found * weight.view(by_channel)
    return found if bias is None else found + bias.view(by_channel)


def _dropout(
    shard: Shard, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Draw for the whole picture, as one process does, and take what is this rank's."""
    if not training or not p:
        return functional.dropout(input, p, training, inplace)
    sizes = shard.gathered(torch.tensor([input.shape[ROWS], input.shape[COLS]], dtype=torch.float64)).long()
    of_rows, of_cols = ([int(each[axis]) for each in sizes] for axis in (0, 1))
    num_cols = shard.grid[1]
    row, col = divmod(shard.world.rank, num_cols)
    heights, widths = of_rows[::num_cols], of_cols[:num_cols]
    whole = input.new_ones((*input.shape[:2], sum(heights), sum(widths)))
    kept = functional.dropout(whole, p)
    top, left = sum(heights[:row]), sum(widths[:col])
    return input * kept[:, :, top : top + heights[row], left : left + widths[col]]


WHOLE: dict[Any, Callable[..., Any]] = {
    functional.adaptive_avg_pool2d: _adaptive_avg_pool2d,
    functional.batch_norm: _batch_norm,
    functional.group_norm: _group_norm,
    functional.instance_norm: _instance_norm,
    functional.dropout: _dropout,
    torch.mean: _mean,
    Tensor.mean: _mean,
}
