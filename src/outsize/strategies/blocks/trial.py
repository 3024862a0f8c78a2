"""Tries which blocks of a model do the same when they run again: each is run twice in one forward on the example.

What a block saves for backward must be the same both times, and the second run must leave no trace in what its forward
can reach: attributes, lists, variables around its functions, generators of random numbers besides torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from outsize.errors import first_line
from outsize.measure.memory import ran_out
from outsize.measure.state import Reachable, equal
from outsize.measure.tensors import tensors_in
from outsize.measure.where import is_parameter
from outsize.strategies.blocks.alike import is_opaque
from outsize.strategies.blocks.checkpointing import Buffers, hooked_in
from outsize.strategies.find import find_module
from outsize.strategies.replaced import forward_of, run_instead

_MOST_CALLS = 2  # of one block: a module that runs for each of many steps does the same in all
_LOOSE = 0.01  # what kernels of a GPU that add up in any order may differ by, of the largest number
# what a forward may raise that is not meant to run twice
_MISTAKES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, StopIteration, TypeError,
    ValueError,
)  # fmt: skip


def unfit(model: nn.Module, paths: Collection[str], run: Callable[[], object]) -> dict[str, str]:
    """Return modules that must not run again, or lie in what does, and why; `run` is a forward of the model.

    The model and all that it reaches are put back by the caller.
    """
    found: dict[str, str] = {}
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(_twice(path, find_module(model, path, "recomputed as a whole"), found))
        with saved_tensors_hooks(_drop, _asked):
            try:
                run()
                return found
            except _Dropped:
                pass
        run()  # keeping all: it goes backward on the way
    return found


class _Dropped(RuntimeError):
    """Raised where a forward needs what was dropped."""


def _drop(_: Tensor) -> None:
    return None


def _asked(_: None) -> Tensor:
    raise _Dropped


@contextmanager
def _twice(path: str, block: nn.Module, found: dict[str, str]) -> Iterator[None]:
    once, num_calls = forward_of(block), 0

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def run(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        hooked = hooked_in(block)
        if hooked is not None:
            outer, _, name = f"{path}.{hooked}".rpartition(".")
            found.setdefault(outer, f"a hook on '{name}' in it would fire twice")
        if path in found or num_calls == _MOST_CALLS:
            return once(block, *args, **kwargs)
        num_calls += 1
        return _Pair(path, block, once, found).run(args, kwargs)

    with run_instead(block, run):
        yield


class _Pair:
    """Two runs of one call of a block."""

    def __init__(self, path: str, block: nn.Module, once: Callable[..., Any], found: dict[str, str]) -> None:
        self._path, self._block, self._once, self._found = path, block, once, found
        self._buffers = Buffers(block)

    def run(self, args: Any, kwargs: Any) -> Any:
        """Return what the first gives, with the caller's own lists and dicts."""
        again = tree_map(lambda each: each, (args, kwargs))
        given = tensors_in(again)
        versions = [each._version for each in given]
        generators = _Generators(given, self._block)
        saved: tuple[list[_Held], list[_Held]] = ([], [])
        with _held(saved[0]):
            result = self._once(self._block, *args, **kwargs)
        if versions != [each._version for each in given]:
            self._refuse(self._path, "it changes what it is given in place")
        else:
            opaque = [each for each in tree_leaves(again) if not isinstance(each, Tensor)]
            reachable = Reachable(self._block, *opaque, path=self._path, besides=["_buffers"])
            self._second(again, generators, saved[1])
            for where in reachable.changes():
                module = where.module if where.module.startswith(self._path) else self._path
                self._refuse(module, f"its forward changes {where.name or 'what it is given'}")
            reachable.put_back()
            self._compare(*saved)
        for each in (*saved[0], *saved[1]):
            each.tensor = None
        return result

    def _second(self, again: Any, generators: _Generators, saved: list[_Held]) -> None:
        args, kwargs = again
        try:
            with generators.as_before(), self._buffers.set_aside(), _held(saved), _Drawing() as drawing:
                self._once(self._block, *args, **kwargs)
        except _MISTAKES as error:
            if isinstance(error, RuntimeError) and (ran_out(error) or isinstance(error, _Dropped)):
                raise
            self._refuse(self._path, f"it fails when it runs again ({first_line(error)})")
        else:
            if drawing.own:
                self._refuse(self._path, "it draws from a torch.Generator of its own")
            if drawing.into_others:
                self._refuse(self._path, "it draws into what it has saved already")

    def _compare(self, first: list[_Held], second: list[_Held]) -> None:
        if self._path in self._found:
            return
        if len(first) != len(second):
            self._refuse(self._path, f"it saves {len(first)} tensors, and when it runs again {len(second)}")
        unread = self._buffers.unread
        for one, other in zip(first, second, strict=False):
            a, b = one.tensor, other.tensor
            assert a is not None
            assert b is not None
            if is_parameter(a) or a.layout is not torch.strided or is_opaque(a):
                continue
            if id(a.untyped_storage()) in unread:
                continue
            if a.shape != b.shape or a.dtype != b.dtype or not _same(a, b):
                self._refuse(self._path, "it gives something else when it runs again")
                return

    def _refuse(self, module: str, why: str) -> None:
        self._found.setdefault(module, why)


class _Held:
    """What stands for a saved tensor, until it has been looked at."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor


@contextmanager
def _held(saved: list[_Held]) -> Iterator[None]:
    def pack(tensor: Tensor) -> _Held:
        saved.append(_Held(tensor.detach() if tensor.requires_grad and not is_parameter(tensor) else tensor))
        return saved[-1]

    def unpack(held: _Held) -> Tensor:
        if held.tensor is None:
            raise _Dropped
        return held.tensor

    with saved_tensors_hooks(pack, unpack):
        yield


class _Generators:
    """Torch's own generators, as they are before a run."""

    def __init__(self, given: list[Tensor], block: nn.Module) -> None:
        places = {each.device for each in (*given, *block.parameters()) if each.device.type == "cuda"}
        self._devices = sorted(each.index for each in places)
        self._cpu = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(each) for each in self._devices]

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Let them draw the same inside; afterwards they are as they were behind the first run."""
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


class _Drawing(TorchDispatchMode):
    """Sees whether an operation draws from another generator than torch's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = self.into_others = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            drawn_by = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Generator)]
            self.own = self.own or any(not _is_default(each) for each in drawn_by)
            # as leaky ReLUs that draw their slopes: autograd saves the tensor that these are written to before
            others = func._schema.arguments[1:]
            self.into_others = self.into_others or any(
                each.alias_info is not None and each.alias_info.is_write and not each.is_out
                for each in others
            )
        return func(*args, **kwargs)


def _is_default(generator: torch.Generator) -> bool:
    defaults = [torch.default_generator, *torch.cuda.default_generators]
    return any(generator is each or generator == each for each in defaults)


def _same(one: Tensor, other: Tensor) -> bool:
    if equal(one, other):
        return True
    if one.device.type == "cpu" or not one.is_floating_point():
        return False
    return bool((one - other).abs().max() <= _LOOSE * one.abs().max())
