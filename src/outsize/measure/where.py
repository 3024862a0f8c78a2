"""Tells which call of which module is running: half of the name of everything that happens in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from traceback import walk_tb
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Where:
    """Inside the block, `here` is the path and the call number of the innermost module that runs forward.

    Two hooks for all modules there are, and a table of those of this model: quicker to set and to remove for each
    forward than two hooks for each of several hundred modules. Modules of others pass through unseen.
    """

    def __init__(
        self, model: nn.Module, outside: str = "", changed: Callable[[tuple[str, int]], None] | None = None
    ) -> None:
        """Begin outside of all modules; `changed` hears of each new `here`."""
        self._outside, self._changed = (outside, 0), changed
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._model = model  # an id is good for as long as its object lives
        self._stack: list[tuple[str, int]] = []
        self._calls: Counter[str] = Counter()
        self._hooks = ExitStack()
        self.called: dict[str, None] = {}  # paths of all modules that ran, in the order they first did

    @property
    def here(self) -> tuple[str, int]:
        """The innermost module and its call; outside of all modules the name of that, and 0."""
        return self._stack[-1] if self._stack else self._outside

    @property
    def is_inside(self) -> bool:
        """Whether a module runs forward now, be it in backward, for the second time."""
        return bool(self._stack)

    def begin_step(self) -> None:
        """Count calls from zero again; modules that run already are at their first."""
        self._stack[:] = [(path, 0) for path, _ in self._stack]
        self._calls = Counter(path for path, _ in self._stack)

    def __enter__(self) -> Where:
        self._hooks.callback(register_module_forward_pre_hook(self._enter).remove)
        # also after an exception, or the stack would stay deeper than it is
        self._hooks.callback(register_module_forward_hook(self._leave, always_call=True).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.close()
        self._stack.clear()

    def _enter(self, module: nn.Module, _: Any) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            self._stack.append((path, self._calls[path]))
            self._calls[path] += 1
            self.called[path] = None
            self._tell()

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._stack and id(module) in self._paths:
            self._stack.pop()
            self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed(self.here)


def layer_of(error: BaseException, model: nn.Module) -> str:
    """Return the path of the innermost module that was running when an error came up; "": the model itself, or none."""
    paths, found = {id(module): path for path, module in model.named_modules()}, ""
    for frame, _ in walk_tb(error.__traceback__):
        found = paths.get(id(frame.f_locals.get("self")), found)
    return found


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter of any module, or a view of one: what is saved of them has no name.

    Asked of the tensor itself, for a module may run with others than it shows before: FSDP brings them for a while.
    """
    return isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)
