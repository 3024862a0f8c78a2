"""Runs layers in another way than torch's in training: norms with their ReLU, pools, joins, cross-entropy and more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.losses.cross_entropy import summed_by
from outsize.models.resized import Resized
from outsize.models.unet import JoinedConv2d
from outsize.plan.plan import Fuse
from outsize.plan.step import StepFacts
from outsize.plan.ways import find_fusible
from outsize.strategies.compat import made_by
from outsize.strategies.find import find_module
from outsize.strategies.kernels.enlarged import Scales, back_by_products, pays
from outsize.strategies.kernels.entropy import summed
from outsize.strategies.kernels.folded import can_fold, folded_convolution, folds
from outsize.strategies.kernels.fused_layer import suits
from outsize.strategies.kernels.join import ConvWindow, can_shift, joined_convolution
from outsize.strategies.kernels.later import run_later
from outsize.strategies.kernels.norm import FusedNorm
from outsize.strategies.kernels.pool import FusedPool, can_pool


def fused_layers(model: nn.Module, fuse: Fuse) -> Callable[[], AbstractContextManager[None]]:
    """Return a block in which the named layers are fused; a ReLU that finds its work done passes on what it gets.

    Cross-entropy is fused whatever the model is. Both ways of a step run in it: blocks that are run again in backward
    must find the model as it was in forward. No module is wrapped, so no parameter changes its name, and afterwards
    the model is as it was. What the kernels do not take (another memory format, a CPU, evaluation) runs as it always
    does.
    """
    find = partial(find_module, model, purpose="fused")
    runs: list[tuple[nn.Module, Any]] = [
        (module := find(path), MethodType(run, module))
        for paths, run in (
            (fuse.norms_with_relu, _norm_and_relu),
            (fuse.norms, _norm),
            (fuse.pools, _pool),
            ([path for path in fuse.joins if path not in dict(fuse.shifts)], _join),
            (fuse.columns, _column),
            ([path for path in fuse.enlargings if path not in fuse.later], _enlarge),
            (fuse.later, run_later),
        )
        for path in paths
    ]
    for pair in (_Shifted(find(join), find(before)) for join, before in fuse.shifts):
        runs.append((pair.join, MethodType(_join_shifted, pair)))
        runs.append((pair.before, MethodType(_without_bias, pair.before)))
    if fuse.norms_with_relu:
        relus = (module for module in model.modules() if type(module) is nn.ReLU)
        runs += [(module, MethodType(_relu, module)) for module in relus if "forward" not in vars(module)]

    @contextmanager
    def inside() -> Iterator[None]:
        for module, run in runs:
            module.forward = run  # a method, for a copy of the model that is made meanwhile shall run itself
        try:
            with summed_by(summed):
                yield
        finally:
            for module, _ in runs:
                del module.forward

    return inside


# Arguments have the names that those of forward have: whoever calls a layer may use them.


def _norm_and_relu(module: nn.BatchNorm2d, input: Tensor) -> Tensor:
    return _normed(module, input, relu=True)


def _norm(module: nn.BatchNorm2d, input: Tensor) -> Tensor:
    return _normed(module, input, relu=False)


def _normed(module: nn.BatchNorm2d, x: Tensor, *, relu: bool) -> Tensor:
    if not module.training or not suits(x):
        return type(module).forward(module, x)
    assert module.running_mean is not None
    assert module.running_var is not None
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    running = (module.running_mean, module.running_var)
    made = FusedNorm.apply(x, module.weight, module.bias, running, module.momentum, module.eps, relu)  # type: ignore[no-untyped-call, unused-ignore]
    return cast(Tensor, made)


def _relu(module: nn.ReLU, input: Tensor) -> Tensor:
    # a second ReLU would change nothing, but read and write all of it once more
    norm = made_by(FusedNorm, input)
    done = norm is not None and norm.relu and input._version == norm.version
    return input if done else type(module).forward(module, input)


def _pool(module: nn.MaxPool2d, input: Tensor) -> Tensor:
    least_px = cast(int, module.kernel_size) - 2 * cast(int, module.padding)
    if not suits(input) or min(input.shape[2:]) < least_px:
        return cast(Tensor, type(module).forward(module, input))
    made: Any = FusedPool.apply(input, module.kernel_size, module.stride, module.padding)  # type: ignore[no-untyped-call, unused-ignore]
    return cast(Tensor, made)


class _Shifted(NamedTuple):
    """A join, and the layer before it whose bias it adds: a copy of one has to do with a copy of the other."""

    join: Any
    before: Any


def _join(module: JoinedConv2d, skip: Tensor, up: Tensor) -> Tensor:
    return _joined(module, skip, up, None)


def _join_shifted(pair: _Shifted, skip: Tensor, up: Tensor) -> Tensor:
    return _joined(pair.join, skip, up, pair.before.bias.to(up.dtype))


def _joined(module: JoinedConv2d, skip: Tensor, up: Tensor, shift: Tensor | None) -> Tensor:
    cast_weights = None
    if suits(skip) and suits(up) and skip.dtype == up.dtype and torch.is_grad_enabled():
        cast_weights = _as_autocast_does(module, skip)
    if cast_weights is None:  # torch casts both at once
        return type(module).forward(module, skip, up if shift is None else up + shift[:, None, None])
    window = ConvWindow(
        *(cast(tuple[int, int], each) for each in (module.stride, module.padding, module.dilation))
    )
    return joined_convolution(skip, up, *cast_weights, window, shift)


def _without_bias(module: nn.ConvTranspose2d, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    """Run a layer whose bias is added by the join behind it."""
    if output_size is not None:
        assert module.bias is not None
        return type(module).forward(module, input, output_size) - module.bias[:, None, None]
    settings: Any = (module.stride, module.padding, module.output_padding, module.groups, module.dilation)
    return F.conv_transpose2d(input, module.weight, None, *settings)


def _column(module: nn.Conv2d, input: Tensor) -> Tensor:
    cast_weights = _as_autocast_does(module, input) if suits(input) and folds(module, input) else None
    if cast_weights is None:
        return type(module).forward(module, input)
    dilation = module.dilation[0]
    return folded_convolution(input, *cast_weights, cast(int, module.padding[0]) // dilation, dilation)


def _as_autocast_does(module: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Return weight and bias in the type that autocast would give them; None where x has another."""
    kind = x.device.type
    wanted = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else module.weight.dtype
    if wanted != x.dtype:
        return None
    return module.weight.to(x.dtype), None if module.bias is None else module.bias.to(x.dtype)


def _enlarge(module: nn.Upsample | Resized, *inputs: Any, **named: Any) -> Tensor:
    made: Tensor = type(module).forward(module, *inputs, **named)  # type: ignore[arg-type]
    x: Tensor = inputs[0] if inputs else named["x" if isinstance(module, Resized) else "input"]
    if not suits(x) or not made.requires_grad or not pays(x, made):
        return made
    scales: Scales = (None, None)
    if isinstance(module, nn.Upsample) and not module.recompute_scale_factor:
        given: Any = module.scale_factor
        scales = given if isinstance(given, tuple) else (given, given)
    return back_by_products(x, made, scales, align_corners=bool(module.align_corners))


def fusible(model: nn.Module, facts: StepFacts) -> Fuse:
    """Return the layers of a model that the kernels can run, as a step that is not fused shows them."""
    named = dict(model.named_modules())
    layers = {path for path, module in named.items() if can_be_fused(module)}
    relus = {path for path, module in named.items() if type(module) is nn.ReLU}
    biased = {path for path, module in named.items() if _leaves_its_bias(module)}
    found = find_fusible(facts, layers, relus, biased)
    shifts = tuple((join, before) for join, before in found.shifts if _can_shift(named[join]))
    return replace(found, shifts=shifts)


def made_by_slices(model: nn.Module, facts: StepFacts) -> tuple[str, ...]:
    """Return the modules that may leave it to convolutions to make what they join and enlarge, by slices."""
    joining = {
        path
        for path, module in model.named_modules()
        if path and type(module) is not JoinedConv2d and "forward" not in vars(module)
    }
    return find_fusible(facts, (), (), joining=joining).later


def _can_shift(join: Any) -> bool:
    return can_shift(join.weight, ConvWindow(join.stride, join.padding, join.dilation))


def _leaves_its_bias(module: nn.Module) -> bool:
    """Whether a layer can run without its bias, for a join to add it."""
    return type(module) is nn.ConvTranspose2d and module.bias is not None and "forward" not in vars(module)


def can_be_fused(module: nn.Module) -> bool:
    """Whether the kernels do what a module does."""
    if "forward" in vars(module):
        return False  # it was given another one
    if type(module) is JoinedConv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if type(module) is nn.MaxPool2d:
        plain = module.dilation == 1 and not module.ceil_mode and not module.return_indices
        return plain and can_pool(module.kernel_size, module.stride, module.padding)
    if type(module) is nn.Conv2d:
        return can_fold(module)
    if isinstance(module, nn.Upsample | Resized):
        known = type(module) in (nn.Upsample, nn.UpsamplingBilinear2d, Resized)
        return known and getattr(module, "mode", "bilinear") == "bilinear"
    if type(module) is not nn.BatchNorm2d:
        return False
    has_rows = module.affine and module.running_mean is not None
    return has_rows and module.momentum is not None
