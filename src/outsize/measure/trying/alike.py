"""Runs a model on shapes alone at the very sizes that it will be given, and sees that it does the same at each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outsize.errors import first_line
from outsize.graph import kinds
from outsize.measure.state.kept import as_it_was
from outsize.measure.tensors import own_dtype
from outsize.measure.tracing.ghost import ghost_of
from outsize.tiles.halo import Obstacle
from outsize.tiles.sizes import OTHER_OPERATIONS

# Operations that are told sizes of what they make.
_SIZED = kinds("""
    view reshape _unsafe_view _reshape_alias expand as_strided slice narrow select split split_with_sizes chunk unfold
    full zeros ones empty empty_strided new_full new_zeros new_ones new_empty new_empty_strided arange linspace eye
    native_group_norm resize repeat col2im im2col max_unpool2d unflatten flatten squeeze unsqueeze scalar_tensor
    """)
# Operations that only say where things lie in memory: whether there is one depends on what has one position only.
_LAYOUT = kinds("""
    clone view reshape _unsafe_view _reshape_alias permute transpose t squeeze unsqueeze expand alias detach
    contiguous as_strided copy_ device lift_fresh _to_copy
    """)
_Done = tuple[str, str, tuple[object, ...]]  # module, operation, numbers


def differing_at(model: nn.Module, shapes: Sequence[tuple[int, ...]]) -> Obstacle | None:
    """Return the operation that is another, or is given other numbers, for inputs of these shapes; None: none is."""
    logs: list[list[_Done]] = []
    for shape in shapes:
        try:
            logs.append(_log(model, shape))
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError) as error:
            return Obstacle(
                "", "size", f"does not take pictures of {shape[-2]} x {shape[-1]} px ({first_line(error)})"
            )
    for other in logs[1:]:
        for one, two in zip_longest(logs[0], other):
            if one != two:
                module, name, _ = one or two
                return Obstacle(module, name, OTHER_OPERATIONS)
    return None


class _Log(TorchDispatchMode):
    def __init__(self, stack: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack = stack
        self.done: list[_Done] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func.overloadpacket.__name__)
        if name in _LAYOUT:
            return func(*args, **(kwargs or {}))
        leaves = [each for each in tree_leaves((args, kwargs or {})) if not isinstance(each, Tensor)]
        told = name.rstrip("_") in _SIZED or name.strip("_").startswith(("upsample", "adaptive"))
        kinds = (bool, float, str) if told else (bool, int, float, complex, str)
        numbers = tuple(each for each in leaves if isinstance(each, kinds))
        self.done.append((self.stack[-1], name, numbers))
        return func(*args, **(kwargs or {}))


def _log(model: nn.Module, shape: tuple[int, ...]) -> list[_Done]:
    stack = [""]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with as_it_was(model), torch.no_grad():
        ghost = ghost_of(model, mode).eval()
        log = _Log(stack)
        with _named(ghost, stack), mode, log:
            ghost(torch.zeros(shape, dtype=own_dtype(model)))
    return log.done


@contextmanager
def _named(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the name of the module that runs on top of a list."""

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter(name)).remove)
            hooks.callback(module.register_forward_hook(lambda *_: stack.pop() and None).remove)
        yield
