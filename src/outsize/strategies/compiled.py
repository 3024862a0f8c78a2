"""Compiles modules block by block: the same answer from fewer passes over memory, and other tensors saved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn

from outsize.errors import PlanError, explain
from outsize.files.cache import folder_for_code, folder_for_now
from outsize.files.private import NotPrivateError
from outsize.plan.plan import Compile
from outsize.strategies.compat import Backend, compile_errors, no_global_hooks, with_activation_budget
from outsize.strategies.find import find_module
from outsize.strategies.step import Forward

BACKEND: Backend = "inductor"
_FOLDER_OF_CODE = "TORCHINDUCTOR_CACHE_DIR"


def compiled(model: nn.Module, setting: Compile, forward: Forward) -> Forward:
    """Return what one forward pass runs in, with the named modules compiled, each by itself.

    Each is compiled when it first runs, and lives as long as what is returned; another size of its input (an odd
    last batch) is compiled once more. No module is wrapped: between two passes the model is as it was.
    Sums are added up in another order, and dropout inside of a block draws other numbers than it would by itself.
    """
    blocks = {path: _find(model, path) for path in setting.paths}
    functions = _functions(blocks, setting.activation_budget)
    runs = {path: _run(path, block, functions[path]) for path, block in blocks.items()}

    @contextmanager
    def inside() -> Iterator[None]:
        for path, block in blocks.items():
            block.forward = runs[path]
        try:
            # what checkpoints a block now takes the compiled one; hooks see what that one saves
            with forward():
                yield
        finally:
            for block in blocks.values():
                del block.forward

    return inside


def missing_compiler() -> str | None:
    """Say that a CPU's code cannot be compiled here, for nothing is there that compiles C++; None: it can."""
    if BACKEND != "inductor":
        return None
    asked = os.environ.get("CXX")
    names = [asked] if asked else ["g++", "clang++", "c++"]
    if any(shutil.which(name) for name in names):
        return None
    return f"torch.compile needs a C++ compiler on a CPU, and there is none of {', '.join(names)}"


def _functions(blocks: Mapping[str, nn.Module], budget: float | None) -> dict[str, Callable[..., Any]]:
    """Compile one function for all blocks that are alike: nine equal blocks cost the time of one."""
    _keep_code_to_ourselves()
    backend = BACKEND if budget is None else with_activation_budget(BACKEND, budget)
    made: dict[Hashable, Callable[..., Any]] = {}
    for block in blocks.values():
        kind = _kind(block)
        if kind not in made:
            # Code of its own: torch counts per code object how often it compiled and gives up, without an error, after
            # a few. All nn.Sequential of all models share the code of one forward.
            own = FunctionType(_call.__code__.replace(), globals(), _call.__name__)
            made[kind] = torch.compile(own, dynamic=False, backend=backend)
    return {path: made[_kind(block)] for path, block in blocks.items()}


def _keep_code_to_ourselves() -> None:
    """Have torch keep what it compiles where nobody else can write, unless somebody has said where.

    By itself it takes a folder of /tmp with the user's name, which is whose it is that makes it first, and loads code
    from there.
    """
    if _FOLDER_OF_CODE in os.environ:
        return
    try:
        folder = folder_for_code()
    except (NotPrivateError, OSError):  # then all is compiled in each process, no more
        folder = folder_for_now()
    os.environ[_FOLDER_OF_CODE] = str(folder / "inductor")


def _call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(block).forward(block, *args, **kwargs)


def _kind(block: nn.Module) -> Hashable:
    weights = (*block.named_parameters(), *block.named_buffers())
    return type(block), repr(block), tuple((name, tuple(each.shape), each.dtype) for name, each in weights)


def _run(path: str, block: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    is_first = True

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        if is_first:
            _refuse_replaced(path, block)
            is_first = False
        try:
            with no_global_hooks():
                return function(block, *args, **kwargs)
        except compile_errors() as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise PlanError(
                explain(
                    f"{path} cannot be compiled",
                    f"{type(error).__name__}: {' '.join(lines[:2]) or 'no message'}",
                    "a module that torch.compile can take",
                    "leave it out of compile.paths",
                )
            ) from error

    return run


def _refuse_replaced(path: str, block: nn.Module) -> None:
    """Refuse strategies inside of compiled code: their closures are new each time, and each would be compiled."""
    for name, module in block.named_modules():
        if name and "forward" in vars(module):
            raise PlanError(
                explain(
                    f"{path} cannot be compiled, for a part of it is run in a way of its own",
                    f"{path}.{name}",
                    "modules of which none lies in another, and recomputed blocks that are no part of a compiled one",
                    "leave one of the two out of the plan",
                )
            )


def _find(model: nn.Module, path: str) -> nn.Module:
    module = find_module(model, path, "compiled")
    if "forward" in vars(module):
        raise PlanError(
            explain(
                "a module to be compiled is run in a way of its own already",
                repr(path),
                "the forward of its class",
                "take back what replaced it",
            )
        )
    return module
