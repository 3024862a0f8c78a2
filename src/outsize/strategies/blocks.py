"""Runs whole modules under torch's checkpoint: forward keeps their inputs alone, backward runs them again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from outsize.strategies.find import find_module


@contextmanager
def checkpointed(model: nn.Module, paths: Collection[str]) -> Iterator[None]:
    """Inside the block the named modules keep nothing but their inputs for backward.

    No module is wrapped, so no parameter changes its name, and afterwards the model is as it was.
    """
    blocks = [find_module(model, path, "recomputed as a whole") for path in paths]
    before = [vars(block).get("forward") for block in blocks]
    for block in blocks:
        block.forward = _rerun(block, block.forward)
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def _rerun(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _buffers_aside(block)

    def run(*args: Any, **kwargs: Any) -> Any:
        # lists and dicts of its own: one that the caller fills up further would be another input the second time
        args, kwargs = tree_map(lambda each: each, (args, kwargs))
        return checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts, **kwargs
        )

    return run


@contextmanager
def _buffers_aside(block: nn.Module) -> Iterator[None]:
    """Give the second run copies of all buffers: batch norm would else count the batch twice.

    Not put back by copying: that would count as a change in place of a buffer that autograd has saved.
    """
    held = [(module, name, buffer) for module in block.modules() for name, buffer in module._buffers.items()]
    for module, name, buffer in held:
        module._buffers[name] = None if buffer is None else buffer.detach().clone()
    try:
        yield
    finally:
        for module, name, buffer in held:
            module._buffers[name] = buffer
