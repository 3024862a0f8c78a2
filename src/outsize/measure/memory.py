"""Memory of a device: what is free, what a step takes of it, how much torch may hold, and what it gives back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.measure.tensors import tensors_in

# errors without a class of their own: of the CPU, and of libraries that take memory besides torch
_SAID = (
    "can't allocate memory",
    "CUDA error: out of memory",  # of the driver: a kernel that is loaded, a graph that is made ready
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def free_gpu_bytes(device: torch.device) -> int:
    """Return what this process may still take of a GPU: what nobody holds, as far as a cap of its own leaves it."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    share = torch.cuda.get_per_process_memory_fraction(device)
    if share >= 1:
        return free_bytes
    return max(0, min(free_bytes, int(share * total_bytes) - torch.cuda.memory_reserved(device)))


@contextmanager
def capped(device: torch.device, most_bytes: int) -> Iterator[None]:
    """Let torch hold no more of a GPU inside the block; 0 bounds nothing. What it holds already counts."""
    before = torch.cuda.get_per_process_memory_fraction(device)
    if most_bytes > 0:
        total_bytes = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(before, most_bytes / total_bytes), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def sweep(device: torch.device) -> None:
    """Give memory back that nobody uses any more, also in circles of objects, as the frames of a failed attempt are."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's collector of circles wait: following a model makes so many objects that it takes a tenth of it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages made inside the block and still alive, and their largest sum.

    Works on `meta` tensors, which have sizes and no memory: a window of any size is counted in no time.
    Storages are known by a weak reference to the storage itself, never by address, which is soon reused.
    Sizes are rounded up to `block_bytes`, as a GPU's allocator does.
    """

    def __init__(self, block_bytes: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._block_bytes = block_bytes
        self.now_bytes = 0
        self.peak_bytes: int = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = _storages((args, kwargs))
        for storage in _storages(result):
            # a view of a weight, or a weight changed in place, is nothing new
            if not any(storage is each for each in given):
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), -(-storage.nbytes() // self._block_bytes) * self._block_bytes
        known = self._alive.get(key)
        if known is not None and known() is storage:
            return

        def forget(_: object) -> None:
            self.now_bytes -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, forget)
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [each.untyped_storage() for each in tensors_in(values)]


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


def num_closed_gaps(device: torch.device) -> int:
    """Count how often a GPU's allocator had to put free memory together before it could take some."""
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


def ran_out(error: RuntimeError) -> bool:
    """Whether an error says that there is no memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(each in str(error) for each in _SAID)
