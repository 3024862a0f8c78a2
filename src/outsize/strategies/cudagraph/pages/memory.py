"""Gives a recorded step memory that needs no room in one piece: by pages, as few as its fullest moment fills.

    before      addresses without memory of their own; the limit that torch keeps is lifted, for it counts addresses
    recording   each operation takes its memory from a pool of its own, so that no address is taken twice (apart.py)
    then        torch's notes tell when each was taken and given back; pages of memory are put behind them (sharing.py)
    after       the limit counts pages

Nothing runs while a step is recorded, so until then no memory is needed for it at all.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from outsize.strategies.compat import ask_no_pool, ask_pool, drop_pool, drop_workspaces, noted
from outsize.strategies.cudagraph.pages.addresses import NoAddressesError, addresses
from outsize.strategies.cudagraph.pages.apart import OwnAddresses, uses_of
from outsize.strategies.cudagraph.pages.pages import PAGE_BYTES, Pages, driver
from outsize.strategies.cudagraph.pages.sharing import AddressUse, shared_pages
from outsize.units import format_bytes

_TIMES = 8  # as many addresses as the card has bytes: each is taken once, however often a step takes and gives back


@cache
def why_not_paged() -> str | None:
    """Say why memory cannot be given by pages on this machine; None: it can."""
    try:
        driver()
        addresses()
    except (OSError, NoAddressesError) as error:
        return str(error)
    return None


class PagedMemory:
    """The memory of one recording; to be closed, and where nobody does it closes itself."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._limit = _Limit(device)
        self._uses: list[AddressUse] = []
        self._before_bytes = self._counted_bytes = 0  # held by torch, and addresses that it counts as held
        self._apart: OwnAddresses | None = None
        self._pages = Pages(device, _TIMES * self._limit.total_bytes, self._limit.total_bytes)
        self._close = weakref.finalize(self, _close, self._pages, self._limit)
        self._close.atexit = False  # the driver may be gone
        self.num_bytes = 0  # of the pages

    @property
    def held_bytes(self) -> int:
        """What the process holds with it, in place of what torch takes for that: it counts addresses."""
        return torch.cuda.memory_reserved(self._device) - self._counted_bytes + self.num_bytes

    @contextmanager
    def recording(self, own: Any) -> Iterator[None]:
        """Let operations take their addresses here; for the inside of a recording, whose `own` pool stays empty."""
        self._before_bytes = torch.cuda.memory_reserved(self._device)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        handing = addresses()
        handing.open(self._pages.address, self._pages.size_bytes)
        self._apart = OwnAddresses(self._index, handing, self._limit.total_bytes // 4)
        with ExitStack() as ends:
            self._limit.lift()  # until pages count, or it is closed
            trace = ends.enter_context(noted(self._device))
            ask_no_pool(self._index, own)  # of several pools it may be the one that is asked
            ends.callback(self._ask_again, own)
            with self._apart:
                yield
                drop_workspaces()  # or they would stay in what will be given back
        self._uses = list(uses_of(trace, self._pages.address, self._pages.size_bytes, stream))

    def settle(self, staying: Iterable[Tensor]) -> None:
        """Put memory behind the addresses, when the recording is over and these are all that it leaves.

        Raises torch.OutOfMemoryError, and RuntimeError where a model keeps more: it would outlive its memory.
        """
        if self._apart is not None:
            self._apart.close()
        self._refuse_kept({each.untyped_storage().data_ptr() - self._pages.address for each in staying})
        places = shared_pages(self._uses, PAGE_BYTES)
        self.num_bytes = PAGE_BYTES * (1 + max(places.values(), default=-1))
        if self._before_bytes + self.num_bytes > self._limit.allowed_bytes:
            held = f"{format_bytes(self._before_bytes)} are held besides"
            allowed = f"{format_bytes(self._limit.allowed_bytes)} are allowed"
            raise torch.OutOfMemoryError(
                f"a recorded step needs {format_bytes(self.num_bytes)}: {held}, {allowed}"
            )
        self._pages.place(places)
        # torch counts the addresses of what stays, and knows nothing of pages
        self._counted_bytes = torch.cuda.memory_reserved(self._device) - self._before_bytes
        self._limit.count(self._counted_bytes - self.num_bytes)

    def close(self) -> None:
        """Give it back; tensors of the recording must not be used any more."""
        self._close()

    def _ask_again(self, own: Any) -> None:
        ask_pool(self._index, own)  # to be ended with the recording
        drop_pool(self._index, own)

    def _refuse_kept(self, staying: set[int]) -> None:
        kept = [use for use in self._uses if use.end is None and use.address not in staying]
        if kept:
            size = format_bytes(sum(use.size_bytes for use in kept))
            raise RuntimeError(f"{len(kept)} tensors ({size}) that are made in a step are kept beyond it")


class _Limit:
    """What torch lets the process hold of a GPU; it counts addresses."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = self._now = torch.cuda.get_per_process_memory_fraction(device)
        self.total_bytes = torch.cuda.mem_get_info(device)[1]

    @property
    def allowed_bytes(self) -> float:
        """What is allowed, as it was found."""
        return self._before * self.total_bytes

    def lift(self) -> None:
        """Allow all that there is."""
        self._set(1.0)

    def count(self, more_bytes: int) -> None:
        """Allow so many addresses more than bytes."""
        self._set(self._before + more_bytes / self.total_bytes)

    def restore(self) -> None:
        """Allow what was allowed before, if nobody has set it again."""
        if torch.cuda.get_per_process_memory_fraction(self._device) == self._now:
            self._set(self._before)

    def _set(self, share: float) -> None:
        if self._before < 1:
            torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, share)), self._device)
            self._now = torch.cuda.get_per_process_memory_fraction(self._device)


def _close(pages: Pages, limit: _Limit) -> None:
    pages.close()
    limit.restore()
