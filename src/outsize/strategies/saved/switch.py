"""Has operations watched only in the calls of modules where there is something to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from outsize.measure.where import Where


class Switch(Where):
    """Tells which call of which module is running, and turns a mode on and off accordingly.

    A mode costs about ten microseconds for each operation, of which a network has a thousand.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._mode: TorchDispatchMode | None = None
        self._places: frozenset[tuple[str, int]] = frozenset()
        self._on = False

    @contextmanager
    def only_in(self, mode: TorchDispatchMode, places: frozenset[tuple[str, int]]) -> Iterator[None]:
        """Inside the block a mode is on while one of these calls is the innermost, and off else."""
        self._mode, self._places, self._on = mode, places, False
        self._turn()
        try:
            yield
        finally:
            self._places = frozenset()
            self._turn()
            self._mode = None

    def _turn(self) -> None:
        if self._mode is None or (self.here in self._places) is self._on:
            return
        if not self._on:
            self._mode.__enter__()
            self._on = True
        elif _get_current_dispatch_mode() is self._mode:  # else it stays on: one that came after is above it
            self._mode.__exit__(None, None, None)
            self._on = False

    def _enter(self, module: nn.Module, args: Any) -> None:
        super()._enter(module, args)
        if self._mode is not None:
            self._turn()

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        super()._leave(module, args, result)
        if self._mode is not None:
            self._turn()
