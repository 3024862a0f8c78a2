"""Runs one step of a model on shapes alone, as a device would run it, and has it recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from traceback import walk_tb
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from outsize.errors import OutsizeError, TraceError, explain, first_line
from outsize.measure.state import reach_as_it_was
from outsize.measure.tensors import format_shapes, own_dtype, shapes_of, tensors_in
from outsize.measure.tracing.ghost import AnyNumber, as_on_cuda, ghost_of
from outsize.measure.tracing.recorder import record, state_of
from outsize.measure.where import layer_of
from outsize.plan.step import StepFacts, allocated_bytes

Loss = Callable[[nn.Module, Any], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def likeliest(output: Any) -> object:
    """Return share and class of the likeliest class of every pixel, for each tensor of an output."""
    maps = [each for each in tensors_in(output) if each.dim() > 1]
    return [each.float().softmax(1).max(1) for each in maps]


def trace_step(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss | None,
    optimizer: MakeOptimizer | None = None,
    bf16: bool = False,
    device: Literal["cuda", "cpu"] = "cuda",
    around: Callable[[nn.Module], AbstractContextManager[object]] | None = None,
    outside: str = "",
) -> StepFacts:
    """Run a step of training, or without a loss one of prediction, on shapes alone, as `device` would run it.

    `batch` is the shape of pictures, channels last; or a tensor, or anything that holds tensors, for twins of the same
    types and layouts. The loss gets a twin of the model and a batch; labels that are not there it makes itself.
    Nothing is computed and no memory taken. `around` makes a block of the twin, in which both ways of the step run;
    what is done outside of the model is named as if a module of the name `outside` did it.
    A step is one of many: the optimizer's state is there already, gradients are not.
    """
    mode, ghost = FakeTensorMode(allow_non_fake_inputs=True), model
    try:
        ghost = ghost_of(model, mode).train(loss is not None)
        with (
            reach_as_it_was(model, warns=False),
            as_on_cuda() if device == "cuda" else nullcontext(),
            mode,
        ):
            images = _batch(ghost, batch)
            made = _optimizer(ghost, optimizer, foreach=device == "cuda") if loss and optimizer else None

            def run() -> None:
                if loss is None:
                    _predict(ghost, images, bf16=bf16)
                else:
                    _train(ghost, images, loss, made, bf16=bf16)

            with around(ghost) if around is not None else nullcontext():
                return record(
                    run,
                    ghost,
                    optimizer=made,
                    given=tensors_in(images),
                    training=loss is not None,
                    on_cuda=device == "cuda",
                    outside=outside,
                )
    except OutsizeError as error:  # of the model: it says better what is wrong
        raise TraceError(str(error)) from error
    except Exception as error:  # a model may raise anything; timm and torch assert shapes, say
        if _is_our_mistake(error):
            raise
        raise TraceError(why_not_followed(ghost, batch, error)) from error


def state_bytes(model: nn.Module, optimizer: MakeOptimizer) -> int:
    """Return what an optimizer keeps for a model, from shapes alone."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    ghost = ghost_of(model, mode)
    with mode:
        made = _optimizer(ghost, optimizer, foreach=False)
        return sum(allocated_bytes(tensor.untyped_storage().nbytes()) for tensor in state_of(made))


def _batch(model: nn.Module, like: Any) -> Any:
    if not _is_shape(like):
        return tree_map_only(Tensor, partial(_twin, {}), like)
    layout = torch.channels_last if len(like) == 4 else torch.contiguous_format
    return torch.empty(like, dtype=own_dtype(model), memory_format=layout)


def _is_shape(like: Any) -> bool:
    return isinstance(like, tuple) and bool(like) and all(isinstance(each, int) for each in like)


def _twin(storages: dict[int, tuple[Any, Tensor]], tensor: Tensor) -> Tensor:
    """Return a shape in a storage as large as the tensor's, which is shared by all that share that one."""
    storage, size = tensor.untyped_storage(), tensor.element_size()
    # with the storage itself, for its id is good for as long as it lives
    new = storage, torch.empty(storage.nbytes(), dtype=torch.uint8)
    _, flat = storages.setdefault(id(storage), new)
    flat = flat[: flat.numel() // size * size].view(tensor.dtype)
    twin = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return twin.requires_grad_(tensor.requires_grad)


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


def _predict(model: nn.Module, images: Any, *, bf16: bool) -> None:
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = model(images)
        likeliest(output)


def _train(model: nn.Module, images: Any, loss: Loss, optimizer: Optimizer | None, *, bf16: bool) -> None:
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


def why_not_followed(model: nn.Module, batch: Any, error: Exception) -> str:
    """Say what a model raised for a batch of shapes, and in which of its layers."""
    layer = layer_of(error, model)
    sizes = format_shapes((batch,) if _is_shape(batch) else shapes_of(batch))
    where = f" in layer {layer}" if layer else ""
    return explain(
        f"a step of {type(model).__name__} cannot be followed for a batch of {sizes}",
        f"{first_line(error)}{where}",
        "a model that runs on shapes alone",
        "take data-dependent branches, .item() and .numpy() out of forward, or record a real step",
    )
