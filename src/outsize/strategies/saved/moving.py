"""Moves saved tensors that a plan names to host memory, from within the hooks that pack them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterator
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
from outsize.strategies.saved.values import (
    Kept,
    Signal,
    Slot,
    Value,
    geometry_of,
    send,
)
from outsize.strategies.swap.move import Mover, Trip
from outsize.strategies.swap.pinned import PinnedPool
from outsize.strategies.swap.schedule import Eager, SwapSchedule
from outsize.strategies.swap.traffic import Counters, Sums, SwapTally
from outsize.units import format_bytes

# Marks for times cost the host a little: one forward of so many has them, not one of the first, which warm up.
_TIMED_EVERY, _TIMED_AT = 50, 2


class Shuttle:
    """Moves what a plan names, in each forward of a training; host memory is taken by the first one."""

    def __init__(self, device: torch.device, swap: Swap, tell: Callable[[str], object]) -> None:
        self._device, self._swap, self._tell = device, swap, tell
        late = {each.key for each in swap.moved if each.late}
        by_plan = SwapSchedule.of(((each.key, each.release, each.fetch) for each in swap.moved), late)
        self._times = by_plan if swap.ahead_bytes is None else Eager(swap.ahead_bytes)
        self._signals = by_plan.fetch.keys() | by_plan.late.keys()
        self._wanted = _Wanted(swap)
        self._mover: Mover | None = None
        self._told = False
        self._is_recorded = False
        self._before: Sums | None = None
        self._each: Sums | None = None  # of a forward that was recorded
        self.num_met: int | None = None  # of the tensors that the plan names, by the latest forward

    @contextmanager
    def hooks(self, packing: Packing) -> Iterator[None]:
        """Run one forward inside this."""
        if self._mover is None:
            pool = PinnedPool(self._device, self._swap.pinned_bytes, tell=self._tell)
            self._mover = Mover(self._device, self._times, pool)
            # also where nobody closes it; not at the end of the process, when the driver may be gone
            weakref.finalize(self, self._mover.close).atexit = False
        mover = self._mover
        mover.timed = not self._is_recorded and mover.tally.num_forwards % _TIMED_EVERY == _TIMED_AT
        trip = mover.begin_forward()
        moving = _Moving(packing, trip, self._wanted, self._signals)
        try:
            with saved_tensors_hooks(moving.pack, unpack):
                yield
        finally:
            trip.end_forward()
        if torch.is_grad_enabled():  # else nothing is saved
            self._look_back(moving)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count nothing of what runs inside, which may be of any size."""
        before = (SwapTally() if self._mover is None else self._mover.tally).so_far()
        try:
            yield
        finally:
            if self._mover is not None:
                self._mover.tally.back_to(before)

    def before_recording(self) -> None:
        """Let all copies end: a recording knows nothing of what began before it. No marks of time are set in it."""
        self._is_recorded = True
        if self._mover is not None:
            gc.collect()  # what would else be dropped in the middle of the recording
            self._mover.rest()
            self._before = self._mover.tally.so_far()

    def end_recorded(self) -> None:
        """Let compute wait for all copies, as the last that is recorded."""
        if self._mover is not None:
            self._mover.settle()
            self._mover.streams.join()

    def after_recording(self) -> None:
        """Forget the marks of the recording, and note what each replay will move."""
        self._is_recorded = False
        if self._mover is not None:
            self._mover.forget()
            self._each = self._mover.tally.back_to(self._before) if self._before else self._each
            self._before = None

    def replayed(self) -> None:
        """Count what a replay moves."""
        if self._mover is not None and self._each is not None:
            self._mover.tally.again(self._each)

    def counters(self) -> Counters | None:
        """Return what was moved since the last call, and how; None before the first forward."""
        return None if self._mover is None else self._mover.counters()

    def close(self) -> None:
        """Give host memory back; what still lies there is lost."""
        if self._mover is not None:
            self._mover.close()
            self._mover = None

    def _look_back(self, moving: _Moving) -> None:
        """Count what a forward did otherwise than planned, and tell of the first that may need more memory."""
        assert self._mover is not None
        before, self.num_met = self.num_met, moving.num_met
        num_unmet = len(self._swap.moved) - moving.num_met if self._swap.ahead_bytes is None else 0
        self._mover.tally.num_unmet += num_unmet
        self._mover.tally.num_changed += moving.num_changed
        # what the first forward does not save is told by who runs it
        fewer = before is not None and moving.num_met < before
        if not self._told and (moving.grown is not None or fewer):
            self._told = True
            self._tell(_changing(moving, num_unmet, len(self._swap.moved), self._wanted.least_bytes))


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
            return  # it is made again after all, or on its way already
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


def _changing(moving: _Moving, num_unmet: int, num_planned: int, least_bytes: int) -> str:
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
