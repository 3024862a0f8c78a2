"""Hands the saved tensors that a plan names to swap, from within the hooks that pack them."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from outsize.errors import explain
from outsize.measure.tensors import fills_storage, is_read_otherwise
from outsize.plan.plan import Swap
from outsize.plan.step import BLOCK_BYTES, Key
from outsize.strategies.saved.packing import Packing, unpack
from outsize.strategies.saved.values import Kept, Signal, Slot, Value, geometry_of, send
from outsize.strategies.swap import Shuttle, Trip
from outsize.units import format_bytes


@contextmanager
def moved(shuttle: Shuttle, packing: Packing) -> Iterator[None]:
    """Run one forward inside this; tells of the first whose tensors are not those that were planned."""
    trip, wanted = shuttle.begin_forward(), _Wanted(shuttle.swap)
    moving = _Moving(packing, trip, wanted, shuttle.signals)
    try:
        with saved_tensors_hooks(moving.pack, unpack):
            yield
    finally:
        trip.end_forward()
    if not torch.is_grad_enabled():
        return  # nothing is saved
    # what the first forward does not save is reported by who runs it
    fewer = shuttle.end_forward(moving.num_met, moving.num_changed)
    if not shuttle.has_warned and (moving.grown is not None or fewer):
        shuttle.has_warned = True
        shuttle.tell(_changing(moving, shuttle.swap, wanted.least_bytes))


class _Wanted:
    """Says by key and size what is moved."""

    def __init__(self, swap: Swap) -> None:
        self._all = swap.ahead_bytes is not None
        self._planned = {each.key: each.size_bytes for each in swap.moved}
        self.least_bytes = min(self._planned.values(), default=0)

    def planned_bytes(self, key: Key, num_bytes: int) -> int | None:
        """Return the planned size of a tensor that may be moved; None: it is not named."""
        return num_bytes if self._all else self._planned.get(key)


class _Grown(NamedTuple):
    """A tensor that is larger than planned."""

    key: Key
    planned_bytes: int
    found_bytes: int


class _Moving:
    """Packs as others do, and then moves what is named; a storage is moved once, however many tensors lie in it.

    Where a model does otherwise than planned (shapes that hang on data), size decides: what is as large as the
    smallest that the plan moves is moved, as far as there is room, and the rest is kept.
    """

    def __init__(self, packing: Packing, trip: Trip, wanted: _Wanted, signals: Collection[Key]) -> None:
        self._packing, self._trip, self._wanted, self._signals = packing, trip, wanted, signals
        # By the storage itself, for its address is soon another's. Neither is held: autograd holds this hook until
        # the last use of anything that it packed.
        self._away: dict[int, tuple[weakref.ref[Any], weakref.ref[Value | Kept]]] = {}
        self.num_met = self.num_changed = 0
        self.grown: _Grown | None = None  # the first one

    def pack(self, tensor: Tensor) -> Slot | Kept | Signal:
        """Return what autograd shall hold instead of the tensor."""
        storage = tensor.untyped_storage()
        key = self._packing.names.key(tensor)
        if key is None:
            return self._packing.pack_as(None, tensor)
        value = self._moved_before(storage, tensor)
        if value is not None:
            held: Slot | Kept = self._packing.pack_view(value, tensor, key[0])
        else:
            held = self._packing.pack_as(key, tensor)
            planned_bytes = self._wanted.planned_bytes(key, storage.nbytes())
            if planned_bytes is not None:
                self._move(key, held if type(held) is Kept else held.value, storage, planned_bytes)  # type: ignore[union-attr]
        self._trip.packed(key)
        return Signal(held, key, self._trip) if key in self._signals else held

    def _move(self, key: Key, value: Value | Kept, storage: Any, planned_bytes: int) -> None:
        if value.tensor is None:
            return  # it is recomputed after all, or on its way already
        self.num_met += 1
        if not self._as_planned(key, storage.nbytes(), planned_bytes):
            return
        send(value, self._trip.take(key, value.tensor))
        self._away[id(storage)] = weakref.ref(storage), weakref.ref(value)

    def _as_planned(self, key: Key, num_bytes: int, planned_bytes: int) -> bool:
        """Note a tensor of another size than planned, and say whether it is moved."""
        if abs(num_bytes - planned_bytes) < BLOCK_BYTES:
            return True
        self.num_changed += 1
        if num_bytes > planned_bytes and self.grown is None:
            self.grown = _Grown(key, planned_bytes, num_bytes)
        return num_bytes >= self._wanted.least_bytes

    def _moved_before(self, storage: Any, tensor: Tensor) -> Value | Kept | None:
        found = self._away.get(id(storage))
        if found is None or found[0]() is not storage:
            return None
        value = found[1]()
        if value is None or value.version != tensor._version or value.dtype != tensor.dtype:
            return None
        # of what are parts and no views, as an RNN's chunks, each counts its own changes: one version tells nothing
        is_part = tensor._base is None and not fills_storage(tensor)
        is_another = is_part and geometry_of(tensor) != value.geometry
        return None if is_another or is_read_otherwise(tensor) else value


def _changing(moving: _Moving, swap: Swap, least_bytes: int) -> str:
    num_planned = len(swap.moved)
    num_unmet = num_planned - moving.num_met if swap.ahead_bytes is None else 0
    found = f"{num_unmet} of {num_planned} not saved"
    if moving.grown is not None:
        (path, _, _), planned_bytes, found_bytes = moving.grown
        where = f"one of {format_bytes(found_bytes)} in {path or 'the model'}"
        found = f"{moving.num_changed} of {num_planned} of another size, {where}, {found}"
        planned = f"{format_bytes(planned_bytes)} there as planned"
    else:
        planned = "the tensors that the plan names"
    return explain(
        "the tensors that a step saves are not those that were planned: what is smaller than "
        f"{format_bytes(least_bytes)} or finds no room in host memory stays on the device",
        found,
        planned,
        "expect more memory than planned; give inputs of one size, or plan for the largest",
    )
