"""Finds what a module's forward can reach besides its arguments, tells whether it was changed, and puts it back.

Attributes of modules and of all that they hold, variables that their functions read from around them, tensors that are
no buffers, generators of random numbers. What nobody can copy (a file, a socket, a half-read iterator) is not put back;
an iterator that went on is reported.
"""

from __future__ import annotations

import argparse
import array
import functools
import random
import sys
import threading
import types
from collections import UserDict, UserList, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from outsize.measure.state.kept import (
    PLAIN,
    Boxed,
    Cell,
    Items,
    Numbers,
    Remembered,
    Rest,
    State,
    StatePlace,
    Variables,
    is_box,
    is_stateful,
)

_OTHERS = frozenset(sys.stdlib_module_names) | {
    "torch",
    "numpy",
    "outsize",
    "builtins",
    "torchgen",
    "functorch",
}
_HOLDERS = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, threading.local)
_CACHED = functools._lru_cache_wrapper
_NUMBERS = (int, float, complex, str, bytes, type(None))
_MOST = 100_000  # objects that are looked at


@dataclass(frozen=True)
class StateOwner:
    """Whose state it is: the module that leads to it, and a name for a message."""

    module: str
    name: str

    def of(self, name: object) -> StateOwner:
        """Return where a part of it is."""
        return StateOwner(self.module, f"{self.name}.{name}" if self.name else str(name))

    def __str__(self) -> str:
        return f"{self.name} of '{self.module}'" if self.module else self.name


class Reachable:
    """All that can be reached from a module, and from further objects, as it is now.

    Parameters and buffers are copied to the host, unless nobody changes them or they are in the care of others.
    """

    def __init__(
        self,
        model: nn.Module,
        *others: Any,
        path: str = "",
        besides: Collection[Literal["_parameters", "_buffers"]] = (),
    ) -> None:
        self._besides = besides
        self._seen: dict[int, Any] = {}
        self._classes: set[type] = set()
        self._places: list[tuple[StateOwner, StatePlace]] = []
        todo: deque[tuple[StateOwner, Any]] = deque()
        for name, module in model.named_modules(prefix=path):
            todo.append((StateOwner(name, ""), module))
        for name, generator in (("Python's random", _python()), ("numpy's random", _numpy())):
            todo.append((StateOwner("", name), generator))
        todo.extend((StateOwner("", "an argument"), each) for each in others)
        while todo and len(self._seen) < _MOST:
            where, each = todo.popleft()
            if isinstance(each, PLAIN) or id(each) in self._seen:
                continue
            self._seen[id(each)] = each  # an id is good for as long as its object lives
            todo.extend(self._look(where, each))

    def changes(self) -> list[StateOwner]:
        """List what is not as it was."""
        return [
            StateOwner(where.module, where.name if part is None else where.of(part).name)
            for where, place in self._places
            for part in place.changes()
        ]

    def changed(self) -> Iterator[tuple[StateOwner, StatePlace, Any]]:
        """Yield whose it is, where it is kept, and the part of it that is not as it was."""
        for where, place in self._places:
            for part in place.changes():
                yield where, place, part

    def gone_on(self) -> list[StateOwner]:
        """List the iterators that went on, each of which gives something else next time."""
        return [where for where, place in self._places if isinstance(place, Rest) and place.changes()]

    def put_back(self) -> list[StateOwner]:
        """Put all back as it was, and list the iterators, which cannot be."""
        for _, place in self._places:
            place.put_back()
        return self.gone_on()

    def _look(self, where: StateOwner, each: Any) -> Iterator[tuple[StateOwner, Any]]:
        if isinstance(each, Tensor | np.ndarray):
            self._places.append((where, Numbers(each)))
        elif is_stateful(each):
            self._places.append((where, State(each)))
        elif is_box(each):
            self._places.append((where, Boxed(each)))
        elif isinstance(each, nn.Module):
            yield from self._module(where, each)
        elif isinstance(each, dict):
            yield from self._variables(where, Variables(each))
        elif isinstance(each, list | deque | set | bytearray | array.array):
            self._places.append((where, Items(each)))
            yield from ((where.of(place), part) for place, part in enumerate(each))
        elif isinstance(each, tuple | frozenset):
            yield from ((where.of(place), part) for place, part in enumerate(each))
        else:
            yield from self._of_code(where, each)

    def _module(self, where: StateOwner, module: nn.Module) -> Iterator[tuple[StateOwner, Any]]:
        own = vars(module)
        for name, part in own.items():
            if isinstance(part, dict) and name in _BOOKS and name not in self._besides:
                yield from self._variables(where, Variables(part))
        yield from self._variables(where, Variables(own, besides=_BOOKS))
        yield from _functions_of(where, type(module), ("forward",))
        yield from self._class(where, type(module))

    def _variables(self, where: StateOwner, place: Variables) -> Iterator[tuple[StateOwner, Any]]:
        self._places.append((where, place))
        yield from ((where.of(name), part) for name, part in place.parts())

    def _class(self, where: StateOwner, kind: type) -> Iterator[tuple[StateOwner, Any]]:
        for each in kind.__mro__:
            if _is_users(each) and each not in self._classes:
                self._classes.add(each)
                yield from self._variables(where.of(each.__name__), Variables(vars(each), owner=each))

    def _of_code(self, where: StateOwner, each: Any) -> Iterator[tuple[StateOwner, Any]]:
        if isinstance(each, types.MethodType):
            yield where, each.__self__
            yield where, each.__func__
        elif isinstance(each, _CACHED):
            if _is_users(each):
                self._places.append((where, Remembered(each)))
                yield where, each.__wrapped__
        elif isinstance(each, functools.partial):
            yield from ((where, part) for part in (each.func, each.args, each.keywords))
        elif isinstance(each, types.FunctionType):
            if _is_users(each):
                yield from self._function(where, each)
        elif isinstance(each, type):
            yield from self._class(where, each)
        elif isinstance(each, Iterator):
            self._places.append((where, Rest(each)))
        elif _is_users(type(each)) or isinstance(each, _HOLDERS):
            if hasattr(each, "__dict__"):
                yield from self._variables(where, Variables(vars(each)))
            for name in _slots_of(type(each)):
                if hasattr(each, name):
                    yield where.of(name), getattr(each, name)
            yield from _functions_of(where, type(each), ("__call__", "forward"))
            yield from self._class(where, type(each))

    def _function(self, where: StateOwner, function: types.FunctionType) -> Iterator[tuple[StateOwner, Any]]:
        names = _names_in(function.__code__)
        yield from self._variables(where, Variables(function.__globals__, names))
        for name in names:
            if isinstance(module := function.__globals__.get(name), types.ModuleType):
                yield from self._file(where.of(name), module, names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            place = Cell(cell)
            self._places.append((where.of(name), place))
            yield from ((where.of(name), part) for _, part in place.parts())
        for part in (function.__defaults__, function.__kwdefaults__, vars(function)):
            yield where, part

    def _file(
        self, where: StateOwner, module: types.ModuleType, names: list[str]
    ) -> Iterator[tuple[StateOwner, Any]]:
        """Look at another file's variables that code names; of Python's and torch's files, at numbers and texts."""
        if module.__name__.partition(".")[0] not in _OTHERS:
            yield from self._variables(where, Variables(vars(module), names))
            return
        numbers = [name for name in names if isinstance(vars(module).get(name, module), _NUMBERS)]
        if numbers:
            self._places.append((where, Variables(vars(module), numbers)))


# what torch keeps about a module beside its attributes; looked at one by one, for messages name attributes alone
_BOOKS = frozenset(name for name in vars(nn.Module()) if name.startswith("_") or name == "training") - {
    "training"
}


def _functions_of(where: StateOwner, kind: type, names: Iterable[str]) -> Iterator[tuple[StateOwner, Any]]:
    """Yield methods of a class, and those that they call by name."""
    todo, seen = list(names), set(names)
    while todo:
        name = todo.pop()
        found = getattr(kind, name, None)
        found = getattr(found, "__func__", found)
        inner = found.__wrapped__ if isinstance(found, _CACHED) else found
        if not isinstance(inner, types.FunctionType) or not _is_users(inner):
            continue
        yield where, found
        more = [each for each in _names_in(inner.__code__) if each not in seen]
        seen.update(more)
        todo += more


def _names_in(code: types.CodeType) -> list[str]:
    """List the names that code looks up, also that of the functions in it."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names_in(each))]


def _slots_of(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _is_users(each: Any) -> bool:
    """Whether a class or function is none of Python's, torch's, numpy's or of this package."""
    module = getattr(each, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] not in _OTHERS


def _python() -> random.Random:
    getstate: Any = random.getstate
    found: random.Random = getstate.__self__
    return found


def _numpy() -> np.random.RandomState:
    get_state: Any = np.random.get_state
    found: np.random.RandomState = get_state.__self__
    return found
