"""Runs one step of a model on shapes alone, as a device would run it, and has it recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from traceback import walk_tb
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from outsize.errors import OutsizeError, TraceError, explain
from outsize.measure.ghost import AnyNumber, as_on_cuda, ghost_of
from outsize.measure.record import record, state_of
from outsize.plan.step import StepFacts, allocated_bytes

Loss = Callable[[nn.Module, Tensor], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def likeliest(output: Any) -> object:
    """Return share and class of the likeliest class of every pixel, for each tensor of an output."""
    maps = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.dim() > 1]
    return [each.float().softmax(1).max(1) for each in maps]


def trace_step(
    model: nn.Module,
    batch: tuple[int, ...] | Tensor,
    *,
    loss: Loss | None,
    optimizer: MakeOptimizer | None = None,
    bf16: bool = False,
    channels_last: bool = True,
    device: Literal["cuda", "cpu"] = "cuda",
    around: Callable[[nn.Module], AbstractContextManager[object]] | None = None,
) -> StepFacts:
    """Run a step of training, or without a loss one of prediction, on shapes alone, as `device` would run it.

    `batch` is its shape, or a tensor like it, of any type. The loss gets a twin of the model and a batch; labels it
    makes itself. Nothing is computed and no memory taken.
    `around` makes a block of the twin, in which both ways of the step run.
    A step is one of many: the optimizer's state is there already, gradients are not.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        ghost = ghost_of(model, mode).train(loss is not None)
        with as_on_cuda() if device == "cuda" else nullcontext(), mode:
            images = _batch(ghost, batch, channels_last=channels_last)
            made = _optimizer(ghost, optimizer, foreach=device == "cuda") if loss and optimizer else None

            def run() -> None:
                if loss is None:
                    _predict(ghost, images, bf16=bf16)
                else:
                    _train(ghost, images, loss, made, bf16=bf16)

            with around(ghost) if around is not None else nullcontext():
                training, on_cuda = loss is not None, device == "cuda"
                return record(run, ghost, optimizer=made, given=(images,), training=training, on_cuda=on_cuda)
    except OutsizeError as error:  # of the model: it says better what is wrong
        raise TraceError(str(error)) from error
    except Exception as error:  # a model may raise anything; timm and torch assert shapes, say
        if _is_our_mistake(error):
            raise
        raise TraceError(_why(model, _shape_of(batch), error)) from error


def state_bytes(model: nn.Module, optimizer: MakeOptimizer) -> int:
    """Return what an optimizer keeps for a model, from shapes alone."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        made = _optimizer(ghost_of(model, mode), optimizer, foreach=False)
        return sum(allocated_bytes(tensor.untyped_storage().nbytes()) for tensor in state_of(made))


def _batch(model: nn.Module, like: tuple[int, ...] | Tensor, *, channels_last: bool) -> Tensor:
    own = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    images = torch.empty(_shape_of(like), dtype=like.dtype if isinstance(like, Tensor) else own)
    is_last = channels_last and images.dim() == 4
    return images.contiguous(memory_format=torch.channels_last) if is_last else images


def _shape_of(like: tuple[int, ...] | Tensor) -> tuple[int, ...]:
    return tuple(like.shape) if isinstance(like, Tensor) else like


def _optimizer(model: nn.Module, make: MakeOptimizer, *, foreach: bool) -> Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make(trained)
    for group in optimizer.param_groups:
        # on CUDA torch takes all weights at once unless told otherwise, with temporaries for all of them
        if foreach and "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    with AnyNumber():
        optimizer.step()  # makes the state
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def _predict(model: nn.Module, images: Tensor, *, bf16: bool) -> None:
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = model(images)
        likeliest(output)


def _train(model: nn.Module, images: Tensor, loss: Loss, optimizer: Optimizer | None, *, bf16: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        value = loss(model, images)
    if value.requires_grad:  # a model that is frozen altogether has nothing to go backward for
        value.backward()
    if optimizer is not None:
        with AnyNumber():
            optimizer.step()


def _is_our_mistake(error: Exception) -> bool:
    """Say whether an assertion of this package failed, in a fused layer or a block run again: no model is to blame."""
    innermost = [frame for frame, _ in walk_tb(error.__traceback__)][-1]
    name = str(innermost.f_globals.get("__name__"))
    return isinstance(error, AssertionError) and name.startswith("outsize.")


def _why(model: nn.Module, shape: tuple[int, ...], error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return explain(
        f"a step of {type(model).__name__} cannot be followed for a batch of {'x'.join(map(str, shape))}",
        f"{type(error).__name__}: {lines[0] if lines else 'no message'}",
        "a model that runs on shapes alone",
        "take data-dependent branches, .item() and .numpy() out of forward, or record a real step",
    )
