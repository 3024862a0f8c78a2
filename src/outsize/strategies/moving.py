"""Moves saved tensors that a plan names to host memory, from within the hooks that pack them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from outsize.plan.plan import Swap
from outsize.plan.step import Key
from outsize.strategies.move import Mover, Schedule, Trip
from outsize.strategies.packing import Packing, unpack
from outsize.strategies.pinned import PinnedPool
from outsize.strategies.traffic import Counters
from outsize.strategies.values import Kept, Signal, Slot, Value, send


class Shuttle:
    """Moves what a plan names, in each forward of a training; host memory is taken by the first one."""

    def __init__(self, device: torch.device, swap: Swap, tell: Callable[[str], object]) -> None:
        self._device, self._swap, self._tell = device, swap, tell
        self._times = Schedule.of((each.key, each.release, each.fetch) for each in swap.moved)
        self._moves = frozenset(each.key for each in swap.moved)
        self._mover: Mover | None = None
        self.num_moved = 0  # storages, by the latest forward

    @contextmanager
    def hooks(self, packing: Packing) -> Iterator[None]:
        """Run one forward inside this."""
        if self._mover is None:
            pool = PinnedPool(self._device, self._swap.pinned_bytes, tell=self._tell)
            self._mover = Mover(self._device, self._times, pool)
            # also where nobody closes it; not at the end of the process, when the driver may be gone
            weakref.finalize(self, self._mover.close).atexit = False
        trip = self._mover.begin_forward()
        moving = _Moving(packing, trip, self._moves, self._times.fetch.keys())
        try:
            with saved_tensors_hooks(moving.pack, unpack):
                yield
        finally:
            trip.end_forward()
        self.num_moved = moving.num_moved

    def counters(self) -> Counters | None:
        """Return what was moved since the last call, and how; None before the first forward."""
        return None if self._mover is None else self._mover.counters()

    def close(self) -> None:
        """Give host memory back; what still lies there is lost."""
        if self._mover is not None:
            self._mover.close()
            self._mover = None


class _Moving:
    """Packs as others do, and then moves what is named; a storage is moved once, however many tensors lie in it."""

    def __init__(
        self, packing: Packing, trip: Trip, moves: Collection[Key], signals: Collection[Key]
    ) -> None:
        self._packing, self._trip, self._moves, self._signals = packing, trip, moves, signals
        # By the storage itself, for its address is soon another's. Neither is held: autograd holds this hook until
        # the last use of anything that it packed.
        self._away: dict[int, tuple[weakref.ref[Any], weakref.ref[Value | Kept]]] = {}
        self.num_moved = 0

    def pack(self, tensor: Tensor) -> Slot | Kept | Signal:
        """Return what autograd shall hold instead of the tensor."""
        storage = tensor.untyped_storage()
        key = self._packing.names.key(storage)
        if key is None:
            return self._packing.pack_as(None, tensor)
        value = self._moved_before(storage, tensor)
        if value is not None:
            held: Slot | Kept = self._packing.pack_view(value, tensor, key[0])
        else:
            held = self._packing.pack_as(key, tensor)
            if key in self._moves:
                self._move(key, held if type(held) is Kept else held.value, storage)  # type: ignore[union-attr]
        self._trip.packed(key)
        return Signal(held, key, self._trip) if key in self._signals else held

    def _move(self, key: Key, value: Value | Kept, storage: Any) -> None:
        if value.tensor is None:
            return  # it is made again after all, or on its way already
        send(value, self._trip.take(key, value.tensor))
        self._away[id(storage)] = weakref.ref(storage), weakref.ref(value)
        self.num_moved += 1

    def _moved_before(self, storage: Any, tensor: Tensor) -> Value | Kept | None:
        found = self._away.get(id(storage))
        if found is None or found[0]() is not storage:
            return None
        value = found[1]()
        if value is None or value.version != tensor._version or value.dtype != tensor.dtype:
            return None
        return value
