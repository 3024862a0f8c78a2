"""Lets each operation take its memory from a pool of its own, so that no address is taken twice; and tells its uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.strategies.compat import ask_no_pool, ask_pool, drop_pool
from outsize.strategies.cudagraph.pages.addresses import Addresses
from outsize.strategies.cudagraph.pages.sharing import AddressUse

# Numbers: what is made of no more shares pages with others, for it would leave most of its last one empty.
_FEW = 2**20


class OwnAddresses(TorchDispatchMode):
    """Inside the block each operation of this thread takes addresses that no other one has.

    `close` it when the recording is over: torch may ask pools for what they gave until then.
    """

    def __init__(self, index: int, addresses: Addresses, most_bytes: int) -> None:
        """After every `most_bytes` of addresses torch forgets those given back: it counts them against the card."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._index, self._addresses, self._most_bytes = index, addresses, most_bytes
        self._dense, self._fresh = (
            self._new(),
            self._new(),
        )  # the first is for all small ones, next to one another
        self._used = [self._fresh]
        self._left_bytes = self._left_then_bytes = addresses.left_bytes()
        self._now: torch.cuda.MemPool | None = None

    def __enter__(self) -> OwnAddresses:
        self._ask(self._dense)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._ask(None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._ask(self._dense if num_elements(args) <= _FEW else self._unused())
        made = func(*args, **(kwargs or {}))
        return self._closer(made) if func is torch.ops.aten.convolution_backward.default else made

    def close(self) -> None:
        """Forget the pools, and with them all addresses that were given back."""
        self._used.clear()
        del self._dense, self._fresh

    def _new(self) -> torch.cuda.MemPool:
        return torch.cuda.MemPool(self._addresses.for_torch)

    def _closer(self, made: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Copy gradients of weights, which stay until the end, from next to that of the input to one another."""
        self._ask(self._dense)
        return tuple(each.clone() if each is not None and each.numel() <= 2 * _FEW else each for each in made)

    def _unused(self) -> torch.cuda.MemPool:
        left_bytes = self._addresses.left_bytes()
        if left_bytes == self._left_bytes:
            return self._fresh  # nothing was taken of it yet
        self._left_bytes = left_bytes
        if self._left_then_bytes - left_bytes > self._most_bytes:
            self._left_then_bytes = left_bytes
            self._ask(None)  # pools can be emptied only while none is asked
            self._used.clear()
            self._fresh = self._new()
            torch.cuda.empty_cache()
        else:
            self._fresh = self._new()
        self._used.append(self._fresh)
        return self._fresh

    def _ask(self, pool: torch.cuda.MemPool | None) -> None:
        if pool is self._now:
            return
        if self._now is not None:
            ask_no_pool(self._index, self._now.id)
            drop_pool(self._index, self._now.id)
        if pool is not None:
            ask_pool(self._index, pool.id)
        self._now = pool


def num_elements(args: Any) -> int:
    """Return the numbers of the largest argument; of a list of whole numbers, those of a tensor of that size."""
    if isinstance(args, Tensor):
        return args.numel()
    if not isinstance(args, list | tuple) or not args:
        return 0
    if all(type(each) is int for each in args):
        return math.prod(max(1, each) for each in args)
    return max(map(num_elements, args))


def uses_of(
    trace: Iterable[dict[str, Any]], first: int, size_bytes: int, stream: int
) -> Iterator[AddressUse]:
    """Yield when addresses of a range were in use, by torch's notes; without an end, if they were not given back.

    Nor if they were taken for another stream: what is given back there may still be read when this one goes on.
    """
    taken: dict[int, tuple[int, int]] = {}
    for event, entry in enumerate(trace):
        address = entry["addr"] - first
        if not 0 <= address < size_bytes:
            continue
        if entry["action"] == "alloc":
            taken[address] = entry["size"], event
        elif entry["action"] == "free_completed" and address in taken and entry["stream"] == stream:
            num_bytes, start = taken.pop(address)
            yield AddressUse(address, num_bytes, start, event)
    for address, (num_bytes, start) in taken.items():
        yield AddressUse(address, num_bytes, start, None)
