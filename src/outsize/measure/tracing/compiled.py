"""What compiled blocks keep for backward, from one real step: nobody can look inside of them beforehand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from outsize.measure.tensors import tensors_in, without_history
from outsize.plan.step import allocated_bytes
from outsize.plan.ways.compiled import CompiledSaved


def compiled_saved_bytes(
    run: Callable[[], object], model: nn.Module, paths: Collection[str], *, num_px: int
) -> dict[str, CompiledSaved]:
    """Run one step, in which the named modules are compiled, and return what each of them keeps for itself.

    `run` is a forward with or without its backward, on `num_px` pixels of all samples together, without recompute:
    hooks see what comes past the innermost ones alone. Fixed is what has the shape of a weight of its block, such as
    a copy in another precision; all else grows with the pixels. Weights, what goes into a block and what comes
    out of it belong to others.
    """
    found = {path: _Kept(model, model.get_submodule(path)) for path in paths}
    with ExitStack() as stack:
        for each in found.values():
            stack.enter_context(each.watching())
        stack.enter_context(saved_tensors_hooks(_pack(found.values()), lambda tensor: tensor))
        run()
    return {
        path: CompiledSaved(each.fixed_bytes, each.growing_bytes / num_px) for path, each in found.items()
    }


def rise_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Return how far a step rises above what is there before it; None on a CPU, where nobody counts."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before_bytes = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before_bytes


def _pack(blocks: Collection[_Kept]) -> Callable[[Tensor], Tensor]:
    def pack(tensor: Tensor) -> Tensor:
        for block in blocks:
            if block.running:
                block.packed.append(tensor.detach())
        return without_history(tensor)

    return pack


class _Kept:
    """Counts what a block packs; tensors are held during its call alone."""

    def __init__(self, model: nn.Module, block: nn.Module) -> None:
        weights = (*model.parameters(), *model.buffers())
        self._weights = {id(each): each for each in map(_storage, weights)}
        own = (*block.parameters(), *block.buffers())
        self._shapes = {_without_ones(each) for each in own}
        self._block = block
        self.running = False
        self.packed: list[Tensor] = []
        self.fixed_bytes = self.growing_bytes = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calls of the block."""
        begin = self._block.register_forward_pre_hook(self._begin)
        end = self._block.register_forward_hook(self._end, with_kwargs=True, always_call=True)
        try:
            yield
        finally:
            begin.remove()
            end.remove()

    def _begin(self, _: nn.Module, __: Any) -> None:
        self.running = True

    def _end(self, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        outside = tensors_in((args, kwargs, output))
        seen = {id(each) for each in map(_storage, outside)} | self._weights.keys()
        for tensor in self.packed:
            storage = _storage(tensor)
            if id(storage) in seen:
                continue
            seen.add(id(storage))
            size_bytes = allocated_bytes(storage.nbytes())
            if _without_ones(tensor) in self._shapes:
                self.fixed_bytes += size_bytes
            else:
                self.growing_bytes += size_bytes
        self.packed.clear()
        self.running = False


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _without_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape if size > 1)
