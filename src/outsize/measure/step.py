"""Watches one step of a model, real or from shapes alone, and writes down every operation, storage and saved tensor."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outsize.errors import OutsizeError, TraceError, explain
from outsize.measure.flops import flops, moved_bytes
from outsize.measure.ghost import AnyNumber, as_on_cuda, ghost_of, mended
from outsize.measure.where import Where, is_parameter
from outsize.plan.step import BLOCK_BYTES, Role, Saved, StepFacts, StepOp, Storage

Loss = Callable[[nn.Module, Tensor], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def likeliest(output: Any) -> object:
    """Return share and class of the likeliest class of every pixel, for each tensor of an output."""
    maps = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.dim() > 1]
    return [each.float().softmax(1).max(1) for each in maps]


def trace_step(
    model: nn.Module,
    batch_shape: tuple[int, ...],
    *,
    loss: Loss | None,
    optimizer: MakeOptimizer | None = None,
    bf16: bool = False,
    channels_last: bool = True,
    device: Literal["cuda", "cpu"] = "cuda",
    around: Callable[[nn.Module], AbstractContextManager[object]] | None = None,
) -> StepFacts:
    """Run a step of training, or without a loss one of prediction, on shapes alone, as `device` would run it.

    The loss gets a twin of the model and a batch; labels it makes itself. Nothing is computed and no memory taken.
    `around` makes a block of the twin, in which both ways of the step run.
    A step is one of many: the optimizer's state is there already, gradients are not.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        ghost = ghost_of(model, mode).train(loss is not None)
        with as_on_cuda() if device == "cuda" else nullcontext(), mode:
            images = _batch(ghost, batch_shape, channels_last=channels_last)
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
    except Exception as error:
        raise TraceError(_why(model, batch_shape, error)) from error


def record(
    run: Callable[[], object],
    model: nn.Module,
    *,
    optimizer: Optimizer | None = None,
    given: Iterable[Tensor] = (),
    training: bool = True,
    on_cuda: bool = False,
) -> StepFacts:
    """Watch any callable that runs the model; `given` are tensors that it reads and that are there before.

    Works on real tensors of any device, too. Data-dependent paths are seen as this one step took them. Shapes that
    stand for tensors on a GPU are copied where its kernels would do that.
    """
    log = _Log()
    for tensor in (*model.parameters(), *model.buffers()):
        log.know(tensor, "weight", born=-1)
    for parameter in model.parameters():
        if parameter.grad is not None:
            log.know(parameter.grad, "gradient", born=-1)
    for tensor in _state(optimizer):
        log.know(tensor, "optimizer", born=-1)
    for tensor in given:
        log.know(tensor, "input", born=-1)
    with ExitStack() as stack:
        where = stack.enter_context(Where(model))
        stack.enter_context(_gradients_noted(model, log))
        # backward of CUDA tensors would else run in another thread
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(saved_tensors_hooks(_packing(log, where), lambda tensor: tensor))
        stack.enter_context(_Watch(log, where, on_cuda=on_cuda))
        run()
    for tensor in _state(optimizer):
        log.know(tensor, "optimizer", born=-1)
    twins = any(isinstance(each, FakeTensor) for each in (*model.parameters(), *given))
    return log.facts(where.called, training=training, twins=twins)


def state_bytes(model: nn.Module, optimizer: MakeOptimizer) -> int:
    """Return what an optimizer keeps for a model, from shapes alone."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        made = _optimizer(ghost_of(model, mode), optimizer, foreach=False)
        sizes = [tensor.untyped_storage().nbytes() for tensor in _state(made)]
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)


@dataclass
class _Life:
    """A storage as it goes: what is not known before the end is filled in."""

    size_bytes: int
    born: int
    role: Role
    dies: int | None = None
    let_go: int | None = None
    num_holders: int = 1  # of its memory: itself, and twins that autograd keeps


@dataclass
class _Log:
    ops: list[StepOp] = field(default_factory=list)
    lives: list[_Life] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    ordinals: Counter[tuple[str, int]] = field(default_factory=Counter)
    known: dict[int, tuple[weakref.ref[Any], int]] = field(default_factory=dict)
    unseen: bool = False  # operations that run now are our own

    def find(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage, if it was seen before."""
        storage = tensor.untyped_storage()
        known = self.known.get(id(storage))
        # by the storage itself, because the id, like the address, is soon used again
        return known[1] if known is not None and known[0]() is storage else None

    def know(self, tensor: Tensor, role: Role, *, born: int) -> int:
        """Return the number of a tensor's storage, which is new or takes on another role."""
        found = self.find(tensor)
        if found is not None:
            self.lives[found].role = role
            return found
        storage, index = tensor.untyped_storage(), len(self.lives)
        self.lives.append(_Life(-(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES, born, role))
        self._follow(storage, index, is_twin=False)
        return index

    def twin_of(self, tensor: Tensor, index: int) -> Tensor:
        """Return a shape for autograd to keep in place of one: so it is seen when others let go of the storage."""
        num_bytes = tensor.untyped_storage().nbytes()
        if num_bytes % tensor.element_size() or tensor.is_conj() or tensor.is_neg():
            return tensor
        self.unseen = True
        try:
            flat = torch.empty(num_bytes // tensor.element_size(), dtype=tensor.dtype, device=tensor.device)
            twin = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        finally:
            self.unseen = False
        self.lives[index].num_holders += 1
        self._follow(twin.untyped_storage(), index, is_twin=True)
        return twin

    def pass_on(self, tensor: Tensor, follower: Tensor) -> None:
        """Let another tensor have the memory of this one, as if it had been changed in place."""
        index = self.seen(tensor)
        self.lives[index].num_holders += 1
        self._follow(follower.untyped_storage(), index, is_twin=False)

    def _follow(self, storage: Any, index: int, *, is_twin: bool) -> None:
        life, key = self.lives[index], id(storage)

        def die(_: object) -> None:
            life.num_holders -= 1
            if not is_twin:
                life.let_go = len(self.ops)
            if not life.num_holders:
                life.dies = len(self.ops)
            self.known.pop(key, None)

        self.known[key] = (weakref.ref(storage, die), index)

    def seen(self, tensor: Tensor) -> int:
        """Return the number of a storage that is read; what nobody made or gave is an input from here on."""
        found = self.find(tensor)
        return self.know(tensor, "input", born=len(self.ops)) if found is None else found

    def facts(self, modules: Iterable[str], *, training: bool, twins: bool) -> StepFacts:
        end = len(self.ops)
        storages = []
        for index, life in enumerate(self.lives):
            dies, let_go = (end if each is None else each for each in (life.dies, life.let_go))
            lets_go = let_go if twins else None
            storages.append(Storage(index, life.size_bytes, life.born, dies, life.role, lets_go))
        self.known.clear()  # no reference will call back any more
        return StepFacts(tuple(self.ops), tuple(storages), tuple(self.saved), training, tuple(modules))


def _is_sum_of_gradients(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether autograd adds what two branches give: with real tensors it does so in place, with shapes it does not.

    A block that is run again on the way back adds, too, but as it did before: with gradients to be found.
    """
    if func is not torch.ops.aten.add.Tensor or torch._C._current_graph_task_id() == -1:
        return False
    if torch.is_grad_enabled():
        return False
    first, second = args[:2]
    if not isinstance(second, FakeTensor) or first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(first.numel() * first.element_size() == first.untyped_storage().nbytes())


class _Watch(TorchDispatchMode):
    """Writes down each operation as it passes."""

    def __init__(self, log: _Log, where: Where, *, on_cuda: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log, self._where, self._on_cuda = log, where, on_cuda

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._log.unseen:
            return func(*args, **kwargs)
        if self._on_cuda and func is torch.ops.aten.convolution_backward.default:
            args = (self._dense(args[0]), *args[1:])
        read = _tensors((args, kwargs))
        inputs = tuple(dict.fromkeys(map(self._log.seen, read)))
        result = func(*args, **kwargs)
        if any(isinstance(tensor, FakeTensor) for tensor in read):
            result = mended(func.overloadpacket.__name__, args, result)
        if self._on_cuda and _is_sum_of_gradients(func, args):
            self._log.pass_on(args[0], result)
        if func.namespace != "prim" and func is not torch.ops.aten.detach.default:
            self._write(func, args, kwargs, read, inputs, result)
        return result

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
        results = _tensors(result)
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
                dtype=str((results or written or [torch.empty(0)])[0].dtype).removeprefix("torch."),
            )
        )


def _packing(log: _Log, where: Where) -> Callable[[Tensor], Tensor]:
    def pack(tensor: Tensor) -> Tensor:
        storage = log.seen(tensor)
        if log.lives[storage].role == "weight" or is_parameter(tensor):
            return tensor
        here = where.here
        size_bytes = tensor.numel() * tensor.element_size()
        log.saved.append(Saved((*here, log.ordinals[here]), storage, size_bytes, len(log.ops)))
        log.ordinals[here] += 1
        return log.twin_of(tensor, storage) if isinstance(tensor, FakeTensor) else tensor

    return pack


@contextmanager
def _gradients_noted(model: nn.Module, log: _Log) -> Iterator[None]:
    def note(parameter: Tensor) -> None:
        if parameter.grad is not None:
            log.know(parameter.grad, "gradient", born=len(log.ops))

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
            found += _tensors(given)
    return found


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _state(optimizer: Optimizer | None) -> list[Tensor]:
    return _tensors([list(entries.values()) for entries in optimizer.state.values()]) if optimizer else []


def _batch(model: nn.Module, shape: tuple[int, ...], *, channels_last: bool) -> Tensor:
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    images = torch.empty(shape, dtype=dtype)
    return (
        images.contiguous(memory_format=torch.channels_last) if channels_last and len(shape) == 4 else images
    )


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


def _why(model: nn.Module, shape: tuple[int, ...], error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return explain(
        f"a step of {type(model).__name__} cannot be followed for a batch of {'x'.join(map(str, shape))}",
        f"{type(error).__name__}: {lines[0] if lines else 'no message'}",
        "a model that runs on shapes alone",
        "take data-dependent branches, .item() and .numpy() out of forward, or record a real step",
    )
