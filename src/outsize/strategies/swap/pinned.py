"""One piece of page-locked host memory, from which buffers of exact size are cut."""

from __future__ import annotations

import contextlib
import mmap
import warnings
import weakref
from bisect import bisect
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from outsize.errors import PlanError, explain
from outsize.measure.machine import free_host_bytes
from outsize.plan.step import BLOCK_BYTES
from outsize.strategies.swap.streams import Mark
from outsize.units import format_bytes, format_seconds

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device
_PLAIN_BYTES_PER_S = 10e9  # of copies between a GPU and memory that is not locked, as they usually are


class Buffer(NamedTuple):
    """Bytes of the pool, from `begin` on."""

    begin: int
    size_bytes: int
    after: Mark | None = None  # the copy that reads what was here before: only behind it may be written


class _Free(NamedTuple):
    begin: int
    end: int
    given: int  # when: of two marks the one given last is reached last
    after: Mark | None


class PinnedPool:
    """Lends buffers of one slab, the first place that is large enough, and takes them back in any order.

    torch's own pinned memory comes in powers of two (its host_memory_stats say so), which wastes up to half. Here
    the system is asked once for exactly what the plan needs, and torch's allocator never sees it.
    """

    def __init__(
        self,
        device: torch.device,
        size_bytes: int,
        *,
        limit_bytes: int | None = None,
        tell: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.size_bytes = _rounded(size_bytes)
        free_bytes = free_host_bytes()
        limit_bytes = free_bytes if limit_bytes is None else min(limit_bytes, free_bytes)
        if self.size_bytes > limit_bytes:
            raise PlanError(_too_small(self.size_bytes, limit_bytes))
        self._slab: Tensor | None = _slab(self.size_bytes)
        refusal = _pin(self._slab, device) if device.type == "cuda" and self.size_bytes else None
        self.pinned = device.type == "cuda" and self.size_bytes > 0 and refusal is None
        if refusal is not None:
            tell(_unpinned(self.size_bytes, refusal))
        # also where nobody closes it: memory that is given back while registered is lost to the process
        self._release = weakref.finalize(self, _unpin, self._slab, self.pinned)
        self._release.atexit = False  # the driver may be gone by then, and all memory goes with the process
        self._free = [_Free(0, self.size_bytes, 0, None)] if self.size_bytes else []
        self._num_given = 0
        self._tell, self._warned_full = tell, False
        self.in_use_bytes = 0
        self.most_bytes = 0  # that were in use at once

    def take(self, num_bytes: int) -> Buffer | None:
        """Lend a buffer; None where there is no room, with a warning the first time."""
        if self._slab is None:
            raise RuntimeError(_closed("a tensor to move there"))
        size_bytes = _rounded(num_bytes)
        place = next((i for i, free in enumerate(self._free) if free.end - free.begin >= size_bytes), None)
        if place is None:
            if not self._warned_full:
                self._warned_full = True
                self._tell(self._full(size_bytes))
            return None
        free = self._free[place]
        rest = free._replace(begin=free.begin + size_bytes)
        self._free[place : place + 1] = [rest] if rest.begin < rest.end else []
        self.in_use_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, self.in_use_bytes)
        return Buffer(free.begin, num_bytes, free.after)

    def give(self, buffer: Buffer, after: Mark | None) -> None:
        """Take a buffer back that may be written again once a mark is reached; marks must come in order.

        None: nothing reads it any more. A copy that still writes it is of the same queue as the next one that will.
        """
        size_bytes = _rounded(buffer.size_bytes)
        self._num_given += 1
        given = self._num_given if after is not None else 0
        free = _Free(buffer.begin, buffer.begin + size_bytes, given, after)
        place = bisect(self._free, free.begin, key=lambda each: each.begin)
        first, last = place, place
        if place < len(self._free) and self._free[place].begin == free.end:
            free, last = _joined(free, self._free[place]), place + 1
        if place > 0 and self._free[place - 1].end == free.begin:
            free, first = _joined(self._free[place - 1], free), place - 1
        self._free[first:last] = [free]
        self.in_use_bytes -= size_bytes

    def forget(self) -> None:
        """Let no copy wait any more for those before: they are over, or are ordered otherwise."""
        self._free = [free._replace(given=0, after=None) for free in self._free]

    def memory(self, buffer: Buffer) -> Tensor:
        """Return the bytes of a buffer."""
        if self._slab is None:
            raise RuntimeError(_closed("a tensor that was moved there before, and is lost"))
        return self._slab[buffer.begin : buffer.begin + buffer.size_bytes]

    def close(self) -> None:
        """Give the memory back to the system; no copy may run any more."""
        self._release()
        self._slab, self._free = None, []

    def _full(self, size_bytes: int) -> str:
        largest = max((free.end - free.begin for free in self._free), default=0)
        planned = f"{self.size_bytes} bytes ({format_bytes(self.size_bytes)}) as planned"
        return explain(
            "host memory for tensors that are moved out is full; those for which there is no room stay on the device",
            f"a pool of {planned}, {self.in_use_bytes} of them in use, the largest gap {largest} bytes",
            f"{size_bytes} bytes in one piece ({format_bytes(size_bytes)})",
            "raise limits.host_memory, or plan again for the batch that is trained",
        )


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _joined(one: _Free, next_one: _Free) -> _Free:
    later = max(one, next_one, key=lambda each: each.given)
    return _Free(one.begin, next_one.end, later.given, later.after)


def _slab(num_bytes: int) -> Tensor:
    """Ask the system for whole pages, large ones where it has them: fewer to lock, and fewer to look up in a copy."""
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return torch.empty(num_bytes, dtype=torch.uint8)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A process that is forked off (a data loader's worker) must not share the pages: whoever of the two writes first
    # would get a copy, and the GPU go on with the other one.
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        with contextlib.suppress(OSError):  # a system without large pages
            if hasattr(mmap, advice):
                pages.madvise(getattr(mmap, advice))
    return torch.frombuffer(pages, dtype=torch.uint8)


def _pin(slab: Tensor, device: torch.device) -> str | None:
    """Lock the pages; return the system's reason where it refuses."""
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()
        code = runtime.cudaHostRegister(slab.data_ptr(), slab.numel(), _PORTABLE)
        if int(code) == 0:
            return None
        reason = str(runtime.cudaGetErrorString(code))
        # CUDA remembers the refusal and hands it to the next kernel that is started, whoever starts it. torch has no
        # cudaGetLastError: a kernel of our own takes it, and a second one shows that it is gone.
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device=device)
        torch.ones(1, device=device)
        return reason


def _unpin(slab: Tensor, pinned: bool) -> None:
    if pinned:
        runtime = torch.cuda.cudart()
        code = runtime.cudaHostUnregister(slab.data_ptr())
        if int(code) != 0:
            raise RuntimeError(f"page-locked memory was not given back: {runtime.cudaGetErrorString(code)}")


def _closed(found: str) -> str:
    return explain(
        "the host memory for moved tensors was given back",
        found,
        "a step that begins and ends before that",
        "call backward inside the block in which forward ran",
    )


def _unpinned(size_bytes: int, reason: str) -> str:
    longer_s = 2 * size_bytes / _PLAIN_BYTES_PER_S
    return explain(
        f"the system does not lock {format_bytes(size_bytes)} of host memory; tensors are moved through plain memory, "
        f"and each copy holds up the GPU: expect steps to take about {format_seconds(longer_s)} longer",
        f"'{reason}'",
        "page-locked memory, from which copies run beside compute",
        "free host memory, allow the container to lock it (ulimit -l unlimited), or lower limits.host_memory",
    )


def _too_small(size_bytes: int, limit_bytes: int) -> str:
    return explain(
        "host memory does not hold the tensors that the plan moves out",
        f"{limit_bytes} bytes ({format_bytes(limit_bytes)}) free or allowed",
        f"{size_bytes} bytes ({format_bytes(size_bytes)})",
        "raise limits.host_memory, free memory of the machine, or raise limits.gpu_memory so that less is moved",
    )
