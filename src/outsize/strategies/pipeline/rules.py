"""Operations that run otherwise in a stage than the graph says.

batch norm   of several replicas: statistics of all of them
dropout      of several replicas: each draws for the micro-batch of all, and takes its rows
convolution  where backward is split: gradients of weights, which nobody waits for, are found later
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from outsize.strategies.replicate import Share, batch_norm_over_ranks, drawn_for_all

Rules = Mapping[Any, Callable[..., Any]]  # what runs in the place of an operation

aten = torch.ops.aten


def rules_of(share: Share, later: Later | None) -> Rules:
    """Return the operations that run otherwise, and how."""
    rules: dict[Any, Callable[..., Any]] = {}
    if not share.world.is_alone:
        if not share.local_norm:
            rules[aten.batch_norm.default] = _norm_over(share)
        for dropout in (aten.dropout.default, aten.feature_dropout.default):
            rules[dropout] = _drawn_for_all(share, dropout)
        rules[aten.bernoulli_.float] = _tossed_for_all(share)
    if later is not None:
        rules[aten.conv2d.default] = later.conv2d
        rules[aten.conv_transpose2d.input] = later.conv_transpose2d
        rules[aten.linear.default] = later.linear
    return rules


def _norm_over(share: Share) -> Callable[..., Tensor]:
    def batch_norm(
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        *rest: Any,
    ) -> Tensor:
        training, momentum, eps, _ = rest
        world = share.world
        return batch_norm_over_ranks(inputs, mean, var, weight, bias, training, momentum, eps, world=world)

    return batch_norm


def _drawn_for_all(share: Share, dropout: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def drawn(inputs: Tensor, p: float, train: bool) -> Tensor:
        return drawn_for_all(share, lambda ones: dropout(ones, p, train), inputs) if train and p else inputs

    return drawn


def _tossed_for_all(share: Share) -> Callable[..., Tensor]:
    def bernoulli_(inputs: Tensor, p: float = 0.5) -> Tensor:
        each = inputs.shape[0] // max(1, share.mine.stop - share.mine.start)
        whole = inputs.new_empty((share.of_all * each, *inputs.shape[1:])).bernoulli_(p)
        return inputs.copy_(whole[share.mine.start * each : share.mine.stop * each])

    return bernoulli_


class Later:
    """Gradients of weights that wait, stage by stage and micro-batch by micro-batch."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def taken(self) -> list[Callable[[], None]]:
        """Return what backward has left since the last call."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def put(self, work: Callable[[], None]) -> None:
        """Leave a gradient for later."""
        self._waiting.append(work)

    def conv2d(self, *args: Any) -> Tensor:
        """Run a convolution."""
        return self._run(aten.conv2d.default, _convolution, *args)

    def conv_transpose2d(self, *args: Any) -> Tensor:
        """Run a transposed convolution."""
        return self._run(aten.conv_transpose2d.input, _transposed, *args)

    def linear(self, *args: Any) -> Tensor:
        """Run a matrix product."""
        return self._run(aten.linear.default, _product, *args)

    def _run(
        self,
        forward: Callable[..., Tensor],
        gradients: Gradients,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *rest: Any,
    ) -> Tensor:
        is_own = (
            isinstance(weight, nn.Parameter) and weight.requires_grad
        )  # another stage waits for what is not
        if not is_own or not inputs.requires_grad or not torch.is_grad_enabled():
            return forward(inputs, weight, bias, *rest)
        dtype = torch.get_autocast_dtype(inputs.device.type)
        narrow = torch.is_autocast_enabled(inputs.device.type) and inputs.dtype != torch.float64
        given = inputs.to(dtype) if narrow else inputs
        # a bias is of the width of what it is added to; its gradient is a sum that backward has anyway
        own_bias = bias.to(given.dtype) if bias is not None else None
        result: Tensor = _Split.apply(given, weight, own_bias, (forward, gradients, rest, self))
        return result


Gradients = Callable[
    ..., tuple[Tensor | None, Tensor | None]
]  # of the input and of the weight, those asked for


class _Split(torch.autograd.Function):
    """A layer whose backward finds the gradient of its input now, and that of its weight when somebody asks."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, how: tuple[Any, ...]
    ) -> Tensor:
        forward, ctx.gradients, ctx.rest, ctx.later = how
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        with torch.autocast(inputs.device.type, enabled=False):
            result: Tensor = forward(inputs, weight.to(inputs.dtype), bias, *ctx.rest)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        gradients, rest = ctx.gradients, ctx.rest

        @torch.no_grad()
        def find() -> None:
            _, found = gradients(grad, inputs, weight.detach().to(inputs.dtype), rest, (False, True))
            found = found.to(weight.dtype)
            weight.grad = found if weight.grad is None else weight.grad.add_(found)

        ctx.later.put(find)
        of_input, _ = gradients(grad, inputs, weight.to(inputs.dtype), rest, (True, False))
        is_product = grad.dim() < 4 or gradients is _product
        axes = range(grad.dim() - 1) if is_product else (0, *range(2, grad.dim()))
        of_bias = grad.sum([*axes]) if ctx.has_bias else None
        return of_input, None, of_bias, None


def _filled(given: tuple[Any, ...], usual: tuple[Any, ...]) -> tuple[Any, ...]:
    return given + usual[len(given) :]


def _convolution(
    grad: Tensor, inputs: Tensor, weight: Tensor, rest: tuple[Any, ...], wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    stride, padding, dilation, groups = _filled(rest, ([1, 1], [0, 0], [1, 1], 1))
    return aten.convolution_backward(  # type: ignore[no-any-return]
        grad, inputs, weight, None, stride, padding, dilation, False, [0, 0], groups, [*wanted, False]
    )[:2]


def _transposed(
    grad: Tensor, inputs: Tensor, weight: Tensor, rest: tuple[Any, ...], wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    stride, padding, more, groups, dilation = _filled(rest, ([1, 1], [0, 0], [0, 0], 1, [1, 1]))
    return aten.convolution_backward(  # type: ignore[no-any-return]
        grad, inputs, weight, None, stride, padding, dilation, True, more, groups, [*wanted, False]
    )[:2]


def _product(
    grad: Tensor, inputs: Tensor, weight: Tensor, rest: tuple[Any, ...], wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    del rest
    if wanted[0]:
        return grad @ weight, None
    return None, grad.flatten(0, -2).T @ inputs.flatten(0, -2)
