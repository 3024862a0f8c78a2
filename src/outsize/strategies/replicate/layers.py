"""Layers that look across samples or draw for each of them, as if the samples of all ranks were on one.

    batch norm   mean and variance over all ranks, forward and backward      one exchange of 2 C + 1 numbers each
    dropout      every rank draws for the whole batch and takes its rows     the same numbers as one process draws

A layer gets another class in place: its name, its parameters and what hangs on them stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from outsize.ranks import World
from outsize.strategies.replicate.share import Share

Gather = Callable[[Tensor], Tensor]  # of a row of each rank
_DRAWS = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "DropPath", "StochasticDepth"}


def look_across(model: nn.Module, share: Share, *, local_norm: bool = False) -> None:
    """Let a model's layers see what all ranks have of a step; called again, with other norms.

    With `local_norm` each rank normalises by its own samples: faster, and another result.
    """
    if share.world.is_alone:
        return
    for module in model.modules():
        kind: type[nn.Module] = getattr(module, "plain_class", type(module))
        if isinstance(module, _BatchNorm):
            module.__class__ = kind if local_norm else _norm_across(kind, share)  # type: ignore[assignment]
        elif kind.__name__ in _DRAWS:
            module.__class__ = _drawing_for_all(kind, share)


def _norm_across(kind: type[nn.Module], share: Share) -> type[nn.Module]:
    """Return a class of batch norms whose statistics are of all ranks, whatever else its forward does."""
    forward: Callable[..., Any] = kind.forward

    def across(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _NormsAcross(share.world) if self.training else _nothing:
            return forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), _members(kind, across))


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_nothing = _Nothing()


class _NormsAcross(TorchFunctionMode):
    """Runs torch's batch norm in training over all ranks."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        return (
            batch_norm_over_ranks(*args, **given, world=self._world)
            if func is nn.functional.batch_norm
            else func(*args, **given)
        )


def batch_norm_over_ranks(  # noqa: PLR0913 (torch's arguments)
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    world: World,
) -> Tensor:
    """Stand in for torch.nn.functional.batch_norm, by its own signature; `world` has the samples to look at."""
    if not training:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps, False)
    result, mean, var, num = normalised(input, weight, bias, eps, world.gathered)
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        unbiased = var * (num / (num - 1).clamp(min=1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return result


def normalised(
    inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, gathered: Gather
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return channels brought to mean 0 and variance 1 over ranks; those means, variances, and the count of numbers.

    `gathered` returns a row of numbers of each of those ranks.
    """
    found: tuple[Tensor, Tensor, Tensor, Tensor] = _Normalise.apply(inputs, weight, bias, eps, gathered)
    return found


class _Normalise(torch.autograd.Function):
    """Batch norm by the mean and variance of all ranks' samples.

    torch's own norm by known statistics finds the sums of this rank. With those of all, a second one gives a + b x, and
    what is left is added in place:

        gradient = - gain (sum grad + x^ sum grad x^) / num  +  gain grad        x^ = (x - mean) scale
                   a + b x, by channel
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        gathered: Gather,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = _at_least_single(inputs)
        # few operations, for in small layers they take longer than the numbers: each rank's mean and variance around
        # it, which lose no digits, then those of all around the mean of all
        own = torch.cat((*torch.batch_norm_update_stats(wide, None, None, 0.0), _count(wide)))
        means, variances, counts = gathered(own).tensor_split((wide.shape[1], 2 * wide.shape[1]), dim=1)
        total = counts.sum()
        parts = (counts / total).view(-1)
        mean = parts @ means
        apart = means - mean
        var = parts @ torch.addcmul(variances, apart, apart)
        result = nn.functional.batch_norm(wide, mean, var, weight, bias, eps=eps).to(inputs.dtype)
        ctx.save_for_backward(inputs, weight, mean, var, total)
        ctx.eps, ctx.has_bias, ctx.gathered = eps, bias is not None, gathered
        ctx.mark_non_differentiable(mean, var, total)
        return result, mean, var, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        inputs, weight, mean, var, total = ctx.saved_tensors
        wide, seen = _at_least_single(grad), _at_least_single(inputs)
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            wide, seen, None, mean, var, None, None, False, ctx.eps, [False, True, True]
        )
        # what the weight and the bias get is this rank's part: it is summed with all other gradients
        of_all = ctx.gathered(torch.cat((grad_bias, grad_weight))).sum(0)
        gain = (var + ctx.eps).rsqrt()
        gain = gain if weight is None else gain * weight
        shift, slope = of_all.view(2, -1) * (gain / -total)
        grad_inputs = torch.batch_norm(seen, slope, shift, mean, var, False, 0.0, ctx.eps, False)
        grad_inputs.addcmul_(wide, _by_channel(gain, wide))
        return (
            grad_inputs.to(grad.dtype),
            None if weight is None else grad_weight.to(weight.dtype),
            grad_bias.to(mean.dtype) if ctx.has_bias else None,
            None,
            None,
        )


def _count(tensor: Tensor) -> Tensor:
    """Return how many numbers each channel has."""
    return torch.full((1,), tensor.numel() / tensor.shape[1], dtype=tensor.dtype, device=tensor.device)


def _by_channel(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.view(1, -1, *[1] * (like.dim() - 2))


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _drawing_for_all(kind: type[nn.Module], share: Share) -> type[nn.Module]:
    """Return a class of dropouts that draw for the samples of all ranks, and take those of this one."""
    forward: Callable[..., Tensor] = kind.forward

    def drawn(self: nn.Module, inputs: Tensor) -> Tensor:
        if not self.training:
            return forward(self, inputs)
        return drawn_for_all(share, partial(forward, self), inputs)

    return type(kind.__name__, (kind,), _members(kind, drawn))


def drawn_for_all(share: Share, draw: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return inputs times what `draw` makes of ones for the samples of all ranks, of which this one takes its rows."""
    mine = share.mine
    # windows of attention: several rows for each sample
    each = inputs.shape[0] // max(1, mine.stop - mine.start)
    sides = (share.of_all * each, *inputs.shape[1:])
    # numbers are drawn as they lie in memory; an axis of one with another's stride lies inside of that one
    order = sorted(
        range(len(sides)), key=lambda axis: (-inputs.stride()[axis], inputs.shape[axis] == 1, axis)
    )
    back = sorted(range(len(order)), key=order.__getitem__)
    kept = draw(inputs.new_ones([sides[axis] for axis in order]).permute(back))
    return inputs * kept[mine.start * each : mine.stop * each]


def _members(kind: type[nn.Module], forward: Callable[..., Any]) -> dict[str, Any]:
    return {"forward": forward, "plain_class": kind, "__module__": kind.__module__}
