"""Watches a step, real or of shapes alone, and writes down every operation, storage and saved tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.measure.tensors import fills_storage, stored_in, tensors_in, without_history
from outsize.measure.tracing.flops import flops, moved_bytes
from outsize.measure.tracing.ghost import mended
from outsize.measure.tracing.lives import Away, Log
from outsize.measure.tracing.origins import Origins
from outsize.measure.tracing.recurrent import with_workspace
from outsize.measure.where import Where, is_parameter
from outsize.plan.step import Saved, StepFacts, StepOp

BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm")


def record(
    run: Callable[[], object],
    model: nn.Module,
    *,
    optimizer: Optimizer | None = None,
    given: Iterable[Tensor] = (),
    training: bool = True,
    on_cuda: bool = False,
    outside: str = "",
    away: bool = False,
) -> StepFacts:
    """Watch any callable that runs the model; `given` are tensors that it reads and that are there before.

    What it does outside of the model, as a loss, is named as if a module of the name `outside` did it. Saved tensors
    that are real may wait in host memory (`away`): less memory is taken, it takes longer, and facts are those of a
    step that keeps them.

    Works on real tensors of any device, too. Data-dependent paths are seen as this one step took them. Shapes that
    stand for tensors on a GPU are copied where its kernels would do that.
    """
    devices = {each.device for each in model.parameters()}
    log = Log(devices.pop() if len(devices) == 1 else None)
    for tensor in (*model.parameters(), *model.buffers()):
        log.know(tensor, "weight", born=-1)
    for parameter in model.parameters():
        for part in stored_in(parameter.grad):
            log.know(part, "gradient", born=-1)
    for tensor in state_of(optimizer):
        log.know(tensor, "optimizer", born=-1)
    for tensor in given:
        log.know(tensor, "input", born=-1)
    with ExitStack() as stack:
        origins = Origins(model, (outside, 0))
        where = stack.enter_context(Where(model, outside, origins.begins))
        stack.enter_context(_gradients_noted(model, log))
        # backward of CUDA tensors would else run in another thread
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(saved_tensors_hooks(_packing(log, where, away=away), _unpacking(log)))
        stack.enter_context(_Watch(log, where, origins, on_cuda=on_cuda))
        run()
    for tensor in state_of(optimizer):
        log.know(tensor, "optimizer", born=-1)
    twins = away or any(isinstance(each, FakeTensor) for each in (*model.parameters(), *given))
    return log.facts(where.called, training=training, twins=twins)


def state_of(optimizer: Optimizer | None) -> list[Tensor]:
    """List the tensors that an optimizer keeps."""
    return tensors_in([list(entries.values()) for entries in optimizer.state.values()]) if optimizer else []


def _is_sum_of_gradients(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether autograd adds what two branches give: with real tensors it does so in place, with shapes it does not.

    A block that is run again in backward adds, too, but as it did before: with gradients to be found.
    """
    if func is not torch.ops.aten.add.Tensor or torch._C._current_graph_task_id() == -1:
        return False
    if torch.is_grad_enabled():
        return False
    first, second = args[:2]
    if not isinstance(second, FakeTensor) or first.shape != second.shape or first.dtype != second.dtype:
        return False
    return fills_storage(first)


class _Watch(TorchDispatchMode):
    """Writes down each operation as it passes."""

    def __init__(self, log: Log, where: Where, origins: Origins, *, on_cuda: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log, self._where, self._origins, self._on_cuda = log, where, origins, on_cuda

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._log.unseen:
            return func(*args, **kwargs)
        if self._on_cuda and func is torch.ops.aten.convolution_backward.default:
            args = (self._dense(args[0]), *args[1:])
        read = stored_in((args, kwargs))
        inputs = tuple(dict.fromkeys(map(self._log.seen, read)))
        result = func(*args, **kwargs)
        if any(isinstance(tensor, FakeTensor) for tensor in read):
            kind = func.overloadpacket.__name__
            result = with_workspace(kind, args, mended(kind, args, result), on_cuda=self._on_cuda)
        if self._on_cuda and _is_sum_of_gradients(func, args):
            self._log.pass_on(args[0], result)
        if func.namespace != "prim" and func is not torch.ops.aten.detach.default:
            self._write(func, args, kwargs, read, inputs, result)
        return result

    def _can_repeat(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: list[Tensor]
    ) -> bool:
        wants = any(tensor.requires_grad for tensor in read)
        return wants and not differs_again(func, args, kwargs, on_cuda=self._on_cuda)

    def _dense(self, grad: Tensor) -> Tensor:
        """Return a gradient as cuDNN takes it: what is a part of a larger one, as of a concatenation, is copied."""
        if grad.is_contiguous() or grad.is_contiguous(memory_format=torch.channels_last):
            return grad
        of_pictures = grad.dim() == 4  # else of rows or volumes, which have no such format
        dense = grad.contiguous(memory_format=torch.channels_last if of_pictures else torch.contiguous_format)
        self._write(torch.ops.aten.clone.default, (grad,), {}, [grad], (self._log.seen(grad),), dense)
        return dense

    def _write(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: list[Tensor],
        inputs: tuple[int, ...],
        result: Any,
    ) -> None:
        log, kind = self._log, func.overloadpacket.__name__
        backward = torch._C._current_graph_task_id() != -1
        written = _written(func, args, kwargs)
        results = stored_in(result)
        made = [tensor for tensor in results if log.find(tensor) is None]
        outputs = [log.seen(tensor) for tensor in written]
        outputs += [log.know(tensor, "activation", born=len(log.ops)) for tensor in made]
        module, call = self._where.here
        log.ops.append(
            StepOp(
                index=len(log.ops),
                kind=kind,
                module=module,
                call=call,
                backward=backward,
                inputs=inputs,
                outputs=tuple(dict.fromkeys(outputs)),
                flops=flops(kind, args, result),
                moved_bytes=moved_bytes(kind, read, [*written, *made]),
                layer=self._origins.here() if backward and not self._where.is_inside else (module, call),
                can_repeat=self._can_repeat(func, args, kwargs, read),
                dtype=str((results or written or [torch.empty(0)])[0].dtype).removeprefix("torch."),
                **(_of_convolution(kind, args, results) if self._on_cuda else {}),
            )
        )


def differs_again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, on_cuda: bool) -> bool:
    """Whether an operation would make something else of the same tensors a second time."""
    if not on_cuda and _is_typed_by_statistics(func.overloadpacket.__name__, args):
        return True
    for place, each in enumerate(func._schema.arguments):
        if each.name == "dropout_p":  # attention that drops some of its weights
            return bool((args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)) > 0)
    return False


def _is_typed_by_statistics(kind: str, args: tuple[Any, ...]) -> bool:
    """Whether a CPU's norm takes the type it computes in from running statistics, which a second time are not there."""
    if kind not in BATCH_NORMS or not args[5]:
        return False
    pictures, weight, mean = args[0], args[1], args[3]
    return weight is None and mean is not None and mean.dtype != pictures.dtype


def _of_convolution(kind: str, args: tuple[Any, ...], results: list[Tensor]) -> dict[str, int]:
    """Return what a GPU's libraries do about a convolution beyond its arithmetic; nothing of other operations."""
    if kind in ("convolution", "fused_folded_convolution", "fused_joined_convolution"):
        bias_bytes = 0 if args[2] is None else results[0].nbytes
        groups, depth = args[-1] if kind == "convolution" else 1, args[0].shape[1]
        return {"biased_bytes": bias_bytes, "depth": depth if groups == 1 else 0}
    if kind == "convolution_backward" and args[-1][2]:
        return {"biased_bytes": args[0].nbytes}
    return {}


def _packing(log: Log, where: Where, *, away: bool) -> Callable[[Tensor], Tensor | Away]:
    def pack(tensor: Tensor) -> Tensor | Away:
        if tensor.layout is not torch.strided:
            return without_history(tensor)
        storage = log.seen(tensor)
        if log.lives[storage].role == "weight" or is_parameter(tensor):
            return without_history(tensor)
        here = where.here
        log.saved.append(Saved((*here, log.ordinals[here]), storage, tensor.nbytes, len(log.ops)))
        log.ordinals[here] += 1
        if isinstance(tensor, FakeTensor):
            return log.twin_of(tensor, storage)
        return log.away(tensor, storage) if away else without_history(tensor)

    return pack


def _unpacking(log: Log) -> Callable[[Tensor | Away], Tensor]:
    return lambda held: log.back(held) if isinstance(held, Away) else held


@contextmanager
def _gradients_noted(model: nn.Module, log: Log) -> Iterator[None]:
    def note(parameter: Tensor) -> None:
        for part in stored_in(parameter.grad):
            log.know(part, "gradient", born=len(log.ops))

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    handles = [parameter.register_post_accumulate_grad_hook(note) for parameter in trained]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """List the tensors that an operation changes in place, as its signature says."""
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += stored_in(given)
    return found
