"""Writes down what a model does with pictures of a shape, on shapes alone: each operation, and what it is given.

A tensor is known by where it comes from: the operation that made it, the weight's name, the values of a constant. Views
of it are no operations here, for whether there is one depends on axes of one position; they are part of where it comes
from.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outsize.graph import kinds
from outsize.measure.memory import uncollected
from outsize.measure.state import as_it_was
from outsize.measure.tensors import own_dtype
from outsize.measure.tracing import ghost_of

# What code of others raises where it does not like a picture.
CRASHES = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    AssertionError,
    ArithmeticError,
    copy.Error,
)
# Operations that are given sizes of what they make.
_SIZED = kinds("""
    as_strided split split_with_sizes unfold
    full zeros ones empty empty_strided new_full new_zeros new_ones new_empty new_empty_strided arange linspace eye
    native_group_norm resize repeat col2im im2col max_unpool2d scalar_tensor
    """)
_SHAPED = kinds("view reshape _unsafe_view _reshape_alias squeeze unsqueeze flatten unflatten")
_SPREAD = kinds("expand")
_MOVED = kinds("permute transpose t")
_SAME = kinds("clone alias detach contiguous lift_fresh lift_fresh_copy lift device")


@dataclass(frozen=True)
class Origin:
    """Where a tensor comes from: by name, what was moved in it since, and the sizes that it had on the way."""

    name: object
    moves: tuple[object, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Done:
    """One operation of a run: what must be the same for pictures of all sizes, and the sizes that it is given."""

    module: str
    name: str
    numbers: tuple[object, ...]
    given: tuple[Any, ...]  # origins of the tensors: their names and moves
    sizes: tuple[int, ...]


def log_of(model: nn.Module, shape: tuple[int, ...]) -> list[Done]:
    """Run a model on shapes alone and list what it does; the last entry is what it returns."""
    stack = [""]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with as_it_was(model), uncollected(), torch.no_grad():
        ghost = ghost_of(model, mode).eval()
        log = _Log(stack)
        with mode:
            inputs = torch.zeros(shape, dtype=own_dtype(model))
        log.call(inputs, Origin("the picture"))
        for name, each in [*ghost.named_parameters(), *ghost.named_buffers()]:
            log.call(each, Origin(name))
        with _named(ghost, stack), mode, log:
            returned = ghost(inputs)
        log.add("", "the answer", (), [each for each in tree_leaves(returned) if isinstance(each, Tensor)])
    return log.done


class _Log(TorchDispatchMode):
    def __init__(self, stack: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack = stack
        self.done: list[Done] = []
        self._origins: dict[int, Origin] = {}
        self._alive: list[Tensor] = []  # an id is good for as long as its tensor lives

    def call(self, tensor: Tensor, origin: Origin) -> None:
        """Note where a tensor comes from."""
        self._alive.append(tensor)
        self._origins[id(tensor)] = origin

    def add(
        self,
        module: str,
        name: str,
        numbers: tuple[object, ...],
        given: Sequence[Tensor],
        sizes: Sequence[int] = (),
    ) -> None:
        """Note an operation."""
        origins = [self._origin(each) for each in given]
        sized = (*sizes, *(size for each in origins for size in each.sizes))
        self.done.append(
            Done(module, name, numbers, tuple((each.name, each.moves) for each in origins), sized)
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func.overloadpacket.__name__)
        before = self._origin(args[0]) if args and isinstance(args[0], Tensor) else None
        result = func(*args, **(kwargs or {}))
        if before is not None and isinstance(result, Tensor):
            moved = _moved(name, args, result)
            if moved is not None:
                self.call(result, _extended(before, *moved))
                return result
        made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        if (not made and name not in _SAME) or any(_constant_of(each) is None for each in made):
            self._note(name, (args, kwargs or {}), made)
        for number, each in enumerate(made):
            self.call(each, Origin((len(self.done), number)))
        return result

    def _note(self, name: str, arguments: Any, made: Sequence[Tensor]) -> None:
        leaves = tree_leaves(arguments)
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        sized = name.rstrip("_") in _SIZED or name.strip("_").startswith(("upsample", "adaptive"))
        fixed = (bool, float, str) if sized else (bool, int, float, complex, str)
        numbers = tuple(each for each in leaves if isinstance(each, fixed))
        sizes = tuple(each for each in leaves if type(each) is int) if sized else ()
        types = tuple(str(each.dtype) for each in made)
        self.add(self.stack[-1], name, (*numbers, *types), tensors, sizes)

    def _origin(self, tensor: Tensor) -> Origin:
        value = _constant_of(tensor)
        if value is not None:
            return Origin(_digest(value))
        return self._origins.get(id(tensor), Origin("unknown"))


def _moved(
    name: str, args: Sequence[Any], result: Tensor
) -> tuple[tuple[object, ...], tuple[int, ...]] | None:
    """Return how a view differs from what it is of, and its sizes; None of what is no view."""
    source: Tensor = args[0]
    shape = tuple(result.shape)
    if name in _SAME:
        return (), ()
    if name == "_to_copy":
        return () if result.dtype == source.dtype else (str(result.dtype),), ()
    if name in _MOVED:
        return (tuple(_order(name, args, source.dim())),), ()
    if name in _SHAPED or name in _SPREAD:
        if shape == tuple(source.shape):
            return (), ()
        return (("shaped" if name in _SHAPED else "spread", len(shape)),), shape
    if name == "select":
        _, axis, index = args
        return (("selected", axis % source.dim()),), (index % source.shape[axis],)
    return _sliced(result, *args) if name == "slice" else None


def _extended(before: Origin, moves: tuple[object, ...], sizes: tuple[int, ...]) -> Origin:
    """Return where a view comes from; of one shape after another the last remains."""
    if moves and before.moves and isinstance(moves[0], tuple) and moves[0][0] == "shaped":
        last = before.moves[-1]
        if isinstance(last, tuple) and last[0] == "shaped":
            kept = len(before.sizes) - last[1]
            return Origin(before.name, (*before.moves[:-1], *moves), (*before.sizes[:kept], *sizes))
    return Origin(before.name, (*before.moves, *moves), (*before.sizes, *sizes))


def _order(name: str, args: Sequence[Any], num_dims: int) -> list[int]:
    if name == "permute":
        return [int(each) % num_dims for each in args[1]]
    order = list(range(num_dims))
    if name == "t":
        return order[::-1]
    one, other = (int(each) % num_dims if num_dims else 0 for each in args[1:3])
    if num_dims:
        order[one], order[other] = other, one
    return order


def _sliced(
    result: Tensor, source: Tensor, axis: int = 0, start: int | None = None, _: object = None, step: int = 1
) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """Return axis and step, how many positions are left out in front, and how many are taken; of all, nothing."""
    if result.shape == source.shape and step == 1:
        return (), ()
    length = source.shape[axis]
    first = 0 if start is None else max(0, min(length, start + length if start < 0 else start))
    return (("sliced", axis % source.dim(), step),), (first, result.shape[axis])


def _constant_of(tensor: Tensor) -> Tensor | None:
    """Return a tensor that holds numbers: made of Python's or numpy's, or an attribute; a fake one holds none."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    return tensor.constant


def _digest(value: Tensor) -> str:
    with unset_fake_temporarily(), torch._C._DisableTorchDispatch():
        if value.layout is not torch.strided or value.is_meta:
            return "unknown"
        numbers = value.detach().resolve_conj().cpu().contiguous()
        if not prod(numbers.shape):
            return "nothing"
        held = numbers.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {hashlib.sha256(held).hexdigest()}"


@contextmanager
def _named(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the name of the module that runs on top of a list."""

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    def leave(*_: object) -> None:
        stack.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter(name)).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        yield
