"""Gives a recorded step memory that needs no room in one piece: by pages, as few as its fullest moment fills.

    before      addresses without memory of their own; the limit that torch keeps is lifted, for it counts addresses
    recording   each operation takes its memory from a pool of its own, so that no address is taken twice
    then        torch's notes tell when each was taken and given back; pages of memory are put behind them (sharing.py)
    after       the limit counts pages

Nothing runs while a step is recorded, so until then no memory is needed for it at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.cuda.memory import (  # type: ignore[attr-defined]
    _cuda_beginAllocateCurrentThreadToPool,  # as its own use_mem_pool does
    _cuda_endAllocateToPool,
    _cuda_releasePool,
)
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.strategies.addresses import Addresses, NoAddressesError, addresses
from outsize.strategies.pages import PAGE_BYTES, Pages, driver
from outsize.strategies.sharing import Use, shared_pages
from outsize.units import format_bytes

# Numbers: what is made of no more shares pages with others, for it would leave most of its last one empty.
_FEW = 2**20


def why_not() -> str | None:
    """Say why memory cannot be given by pages on this machine; None: it can."""
    try:
        driver()
        addresses()
    except (OSError, NoAddressesError) as error:
        return str(error)
    return None


class PagedMemory:
    """The memory of one recording."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._total_bytes = torch.cuda.mem_get_info(device)[1]
        self._allowed = torch.cuda.get_per_process_memory_fraction(device)
        self._addresses: Addresses = addresses()
        self._pools: list[torch.cuda.MemPool] = []
        self._uses: list[Use] = []
        self._before_bytes = 0
        self._pages = Pages(device, self._total_bytes)
        self._set: float | None = None  # the limit while its pages are there
        self.num_bytes = 0  # of the pages

    @property
    def held_bytes(self) -> int:
        """What the process holds with it, in place of what torch takes for that: it counts addresses."""
        return self._before_bytes + self.num_bytes

    @contextmanager
    def recording(self, own: Any) -> Iterator[None]:
        """Let operations take their addresses here; for the inside of a recording, whose `own` pool stays empty."""
        self._before_bytes = torch.cuda.memory_reserved(self._device)
        self._addresses.open(self._pages.address, self._pages.size_bytes)
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)
        torch.cuda.memory._record_memory_history(enabled="all", context=None)
        _cuda_endAllocateToPool(self._index, own)  # of several pools it may be the one that is asked
        apart = _Apart(self._index, self._addresses)
        try:
            with apart:
                yield
        finally:
            self._pools = apart.end()
            _cuda_beginAllocateCurrentThreadToPool(self._index, own)  # to be ended with the recording
            _cuda_releasePool(self._index, own)
            trace = torch.cuda.memory._snapshot(self._device)["device_traces"][self._index]
            torch.cuda.memory._record_memory_history(enabled=None)
            torch.cuda.set_per_process_memory_fraction(self._allowed, self._device)
        self._uses = list(_uses(trace, self._pages.address, self._pages.size_bytes))

    def settle(self) -> None:
        """Put memory behind the addresses, when the recording is over; raises torch.OutOfMemoryError."""
        self._pools.clear()  # torch forgets the addresses of all that was given back
        places = shared_pages(self._uses, PAGE_BYTES)
        self.num_bytes = PAGE_BYTES * (1 + max(places.values(), default=-1))
        allowed_bytes = self._allowed * self._total_bytes
        if self._before_bytes + self.num_bytes > allowed_bytes:
            held = f"{format_bytes(self._before_bytes)} are held besides"
            allowed = f"{format_bytes(allowed_bytes)} are allowed"
            raise torch.OutOfMemoryError(
                f"a recorded step needs {format_bytes(self.num_bytes)}: {held}, {allowed}"
            )
        self._pages.place(places)
        # torch counts the addresses of what the step leaves, which are its gradients, and knows nothing of pages
        counted_bytes = torch.cuda.memory_reserved(self._device) - self._before_bytes
        self._allow(self._allowed + (counted_bytes - self.num_bytes) / self._total_bytes)

    def close(self) -> None:
        """Give it back; tensors of the recording must not be used any more."""
        self._pages.close()
        if torch.cuda.get_per_process_memory_fraction(self._device) == self._set:  # else it is another's now
            self._allow(self._allowed)

    def _allow(self, share: float) -> None:
        if self._allowed < 1:
            torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, share)), self._device)
            self._set = torch.cuda.get_per_process_memory_fraction(self._device)


class _Apart(TorchDispatchMode):
    """Lets each operation allocate from a pool that no other one has: what is given back there is not taken again."""

    def __init__(self, index: int, addresses: Addresses) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._index, self._addresses = index, addresses
        self._dense = torch.cuda.MemPool(addresses.for_torch)  # of all small tensors, one next to the other
        self._fresh = torch.cuda.MemPool(addresses.for_torch)
        self._pools = [self._dense, self._fresh]
        self._left_bytes = addresses.left_bytes()
        self._now: torch.cuda.MemPool | None = None
        self._use(self._dense)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._use(self._dense if _num_elements(args) <= _FEW else self._unused())
        made = func(*args, **(kwargs or {}))
        return self._closer(made) if func is torch.ops.aten.convolution_backward.default else made

    def _closer(self, made: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Copy gradients of weights, which stay until the end, from next to that of the input to one another."""
        self._use(self._dense)
        return tuple(each.clone() if each is not None and each.numel() <= 2 * _FEW else each for each in made)

    def end(self) -> list[torch.cuda.MemPool]:
        """Stop, and return the pools, which must live until the recording is over."""
        self._use(None)
        return self._pools

    def _unused(self) -> torch.cuda.MemPool:
        left_bytes = self._addresses.left_bytes()
        if left_bytes != self._left_bytes:
            self._left_bytes = left_bytes
            self._fresh = torch.cuda.MemPool(self._addresses.for_torch)
            self._pools.append(self._fresh)
        return self._fresh

    def _use(self, pool: torch.cuda.MemPool | None) -> None:
        if pool is self._now:
            return
        if self._now is not None:
            _cuda_endAllocateToPool(self._index, self._now.id)
            _cuda_releasePool(self._index, self._now.id)
        if pool is not None:
            _cuda_beginAllocateCurrentThreadToPool(self._index, pool.id)
        self._now = pool


def _num_elements(args: Any) -> int:
    """Return the numbers of the largest argument; of a list of whole numbers, those of a tensor of that size."""
    if isinstance(args, Tensor):
        return args.numel()
    if not isinstance(args, list | tuple) or not args:
        return 0
    if all(type(each) is int for each in args):
        size = 1
        for each in args:
            size *= max(1, each)
        return size
    return max(map(_num_elements, args))


def _uses(trace: Sequence[dict[str, Any]], first: int, size_bytes: int) -> Iterator[Use]:
    """Yield when addresses of a range were in use, by torch's notes of what was taken and given back."""
    taken: dict[int, tuple[int, int]] = {}
    for event, entry in enumerate(trace):
        address = entry["addr"] - first
        if not 0 <= address < size_bytes:
            continue
        if entry["action"] == "alloc":
            taken[address] = entry["size"], event
        elif entry["action"] == "free_completed" and address in taken:
            num_bytes, start = taken.pop(address)
            yield Use(address, num_bytes, start, event)
    for address, (num_bytes, start) in taken.items():
        yield Use(address, num_bytes, start, len(trace))
