"""One thing that can be changed, as it was: the numbers of a tensor, the items of a list, the variables of a module."""

from __future__ import annotations

import array
import contextvars
import math
import operator
import random
import types
from collections.abc import Collection, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

PLAIN = (
    int, float, complex, str, bytes, bool, type(None), type(...), range, slice,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, np.generic, np.dtype, types.ModuleType,
    types.BuiltinFunctionType,
)  # fmt: skip


class StatePlace(Protocol):
    """What messages say of each."""

    def changes(self) -> list[Any]:
        """Name the parts that are not as they were; None: all of it."""

    def put_back(self) -> None:
        """Put it back as it was."""


class Variables:
    """Names and what they stand for: attributes of an object, entries of a dict, variables of a file or a class."""

    def __init__(
        self,
        held: Any,
        names: Collection[Any] | None = None,
        besides: Collection[Any] = (),
        owner: Any = None,
    ) -> None:
        # of a class what it holds is read only, and set as an attribute
        self._held, self._names, self._besides, self._owner = held, names, besides, owner
        self._was = self._now()

    def parts(self) -> list[tuple[Any, Any]]:
        """List what they stood for."""
        return list(self._was.items())

    def changes(self) -> list[Any]:
        """List the names that stand for something else, are new or are gone."""
        now = self._now()
        gone = [name for name in self._was if name not in now]
        others = [
            name for name, part in now.items() if name not in self._was or not _is(part, self._was[name])
        ]
        return gone + others

    def put_back(self) -> None:
        """Let them stand for what they did."""
        for name in self.changes():
            if name not in self._was:
                self._remove(name)
            else:
                self.put(name, self._was[name])

    def now(self, name: Any) -> Any:
        """Return what a name stands for."""
        return self._now().get(name)

    def put(self, name: Any, value: Any) -> None:
        """Let a name stand for something else."""
        if self._owner is None:
            self._held[name] = value
        else:
            setattr(self._owner, name, value)

    def _remove(self, name: Any) -> None:
        if self._owner is None:
            del self._held[name]
        else:
            delattr(self._owner, name)

    def _now(self) -> dict[Any, Any]:
        if self._names is not None:
            return {name: self._held[name] for name in self._names if name in self._held}
        found = {name: part for name, part in dict(self._held).items() if name not in self._besides}
        if self._owner is None:
            return found
        return {
            name: part
            for name, part in found.items()
            if not name.startswith("__") and not hasattr(part, "__get__")
        }


class Cell:
    """A variable of the function around another."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell
        self._was = _contents(cell)

    def parts(self) -> list[tuple[None, Any]]:
        """List what it stood for."""
        return [(None, each) for each in self._was]

    def changes(self) -> list[Any]:
        """Name it, if it stands for something else."""
        now = _contents(self._cell)
        same = len(now) == len(self._was) and all(map(_is, now, self._was))
        return [] if same else [None]

    def put_back(self) -> None:
        """Let it stand for what it did."""
        if self.changes():
            if self._was:
                self._cell.cell_contents = self._was[0]
            else:
                del self._cell.cell_contents

    def now(self, _: Any) -> Any:
        """Return what it stands for."""
        return next(iter(_contents(self._cell)), None)

    def put(self, _: Any, value: Any) -> None:
        """Let it stand for something else."""
        self._cell.cell_contents = value


def _contents(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing yet
        return []


class Items:
    """A list, a set, an array of Python's or the like."""

    def __init__(self, items: Any) -> None:
        self._items, self._was = items, list(items)

    def changes(self) -> list[Any]:
        """Name it, if it holds others or in another order."""
        now = list(self._items)
        return [] if len(now) == len(self._was) and all(map(_is, now, self._was)) else [None]

    def grow(self, num: int) -> None:
        """Add its last item so many times."""
        if not isinstance(self._items, set) and len(self._items):
            self._items.extend(list(self._items)[-1:] * num)

    def put_back(self) -> None:
        """Fill it with what it held."""
        if self.changes():
            if isinstance(self._items, array.array):
                del self._items[:]
            else:
                self._items.clear()
            (self._items.update if isinstance(self._items, set) else self._items.extend)(self._was)


class Boxed:
    """One value in a box: of ctypes, or of a context."""

    def __init__(self, box: Any) -> None:
        self._box, self._was = box, _inside(box)

    def changes(self) -> list[Any]:
        """Name it, if it holds another."""
        return [] if _is(_inside(self._box), self._was) else [None]

    def put_back(self) -> None:
        """Put the value back; a context that held none keeps what it holds."""
        if self.changes() and self._was is not _NOTHING:
            self.put(None, self._was)

    def now(self, _: Any) -> Any:
        """Return the value."""
        return _inside(self._box)

    def put(self, _: Any, value: Any) -> None:
        """Put another in."""
        if isinstance(self._box, contextvars.ContextVar):
            self._box.set(value)
        else:
            self._box.value = value


_NOTHING = object()


def is_box(each: Any) -> bool:
    """Whether it is a box with one value."""
    return isinstance(each, contextvars.ContextVar) or (
        type(each).__module__ == "ctypes" and isinstance(getattr(each, "value", None), PLAIN)
    )


def _inside(box: Any) -> Any:
    return box.get(_NOTHING) if isinstance(box, contextvars.ContextVar) else box.value


class Numbers:
    """A tensor or an array; copied to the host."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._is_plain = isinstance(tensor, np.ndarray) or (
            tensor.layout is torch.strided and not isinstance(tensor, FakeTensor) and not tensor.is_meta
        )
        self._memory: Any = None
        self._copy: Any = None
        self._gradient: Tensor | None = None
        if isinstance(tensor, np.ndarray):
            self._copy = tensor.copy()
        elif self._is_plain:
            self._memory = tensor.detach()  # a forward may give a parameter other memory
            self._copy = self._memory.to("cpu", copy=True)
            self._gradient = tensor.grad if tensor.is_leaf else None

    def changes(self) -> list[Any]:
        """Name it, if its numbers are others."""
        if not self._is_plain:
            return []
        if isinstance(self._tensor, np.ndarray):
            return [] if _equal_arrays(self._tensor, self._copy) else [None]
        now = self._tensor.detach()
        if now.shape != self._copy.shape or now.dtype != self._copy.dtype:
            return [None]
        return [] if equal(now.cpu(), self._copy) else [None]

    def put_back(self) -> None:
        """Put its numbers back."""
        changed = bool(self.changes())
        if isinstance(self._tensor, np.ndarray):
            if changed and self._tensor.shape == self._copy.shape and self._tensor.flags.writeable:
                self._tensor[...] = self._copy
            return
        if not self._is_plain:
            return
        if changed or self._tensor.data_ptr() != self._memory.data_ptr():
            with torch.inference_mode(self._tensor.is_inference()), torch.no_grad():
                if self._tensor.data_ptr() != self._memory.data_ptr():
                    self._tensor.data = self._memory
                if not equal(self._memory.cpu(), self._copy):
                    self._tensor.copy_(self._copy)
        if self._tensor.is_leaf and self._tensor.grad is not self._gradient:
            self._tensor.grad = self._gradient


class State:
    """A generator of random numbers."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._was = _state_of(generator)

    def changes(self) -> list[Any]:
        """Name it, if it has drawn."""
        return [] if _as_text(_state_of(self._generator)) == _as_text(self._was) else [None]

    def put_back(self) -> None:
        """Let it draw the same again."""
        generator = self._generator
        if isinstance(generator, torch.Generator):
            generator.set_state(self._was)
        elif isinstance(generator, random.Random):
            generator.setstate(self._was)
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(self._was)
        else:
            generator.bit_generator.state = self._was


def is_stateful(each: Any) -> bool:
    """Whether it is a generator of random numbers."""
    return isinstance(each, torch.Generator | random.Random | np.random.RandomState | np.random.Generator)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=True)
    return generator.bit_generator.state


def _as_text(state: Any) -> str:
    if isinstance(state, Tensor):
        return state.numpy().tobytes().hex()
    parts = state if isinstance(state, tuple) else (state,)
    return "".join(each.tobytes().hex() if isinstance(each, np.ndarray) else repr(each) for each in parts)


class Remembered:
    """What functools.lru_cache remembers of a function; forgotten where it has grown, for it cannot be looked at."""

    def __init__(self, cache: Any) -> None:
        self._cache, self._was = cache, cache.cache_info().misses

    def changes(self) -> list[Any]:
        """Name it, if it remembers more."""
        return [None] if self._cache.cache_info().misses > self._was else []

    def put_back(self) -> None:
        """Forget all: what is asked for again is made again."""
        if self.changes():
            self._cache.cache_clear()


class Rest:
    """An iterator that gives one thing after another: how far it came, which cannot be put back."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._was = iterator, _position(iterator)

    def changes(self) -> list[Any]:
        """Name it, if it came further."""
        return [] if _position(self._iterator) == self._was else [None]

    def put_back(self) -> None:
        """Leave it."""


def _position(iterator: Any) -> Any:
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        return None if frame is None else (frame.f_lasti, repr(sorted(map(str, frame.f_locals.items()))))
    try:
        left = operator.length_hint(iterator, -1)
    except TypeError:
        left = -1
    return left, repr(iterator)


def _is(one: Any, other: Any) -> bool:
    """Whether two are the same thing, or the same plain value."""
    if one is other:
        return True
    if type(one) is not type(other) or not isinstance(one, PLAIN):
        return False
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; those that are none count as equal."""
    if torch.equal(one, other):
        return True
    if not one.is_floating_point() and not one.is_complex():
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _equal_arrays(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(one.tobytes() == other.tobytes())
