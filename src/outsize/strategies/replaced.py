"""Runs another function in the place of a module's forward, and takes it away again: the module is not wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import nn


def forward_of(module: nn.Module) -> Callable[..., Any]:
    """Return the function that a call of a module runs now, which is given the module first."""
    replaced = vars(module).get("forward")

    def once(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (
            type(module).forward(module, *args, **kwargs) if replaced is None else replaced(*args, **kwargs)
        )

    return once


@contextmanager
def run_instead(module: nn.Module, run: Callable[..., Any]) -> Iterator[None]:
    """Inside the block a call of the module runs this function, which is given the module first."""
    replaced = vars(module).get("forward")
    module.forward = MethodType(run, module)  # a method, for a copy that is made meanwhile shall run itself
    try:
        yield
    finally:
        if replaced is None:
            del module.forward
        else:
            module.forward = replaced
