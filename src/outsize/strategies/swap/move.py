"""Moves saved tensors to host memory in forward and back in backward, beside compute, at the times a plan names.

All device memory is taken and given back by the compute stream in the order of the program, so that the peak is what
the plan says, however far the host runs ahead:

    compute   ..make x.|.pack x.......|pack y, waits for `left`; x's memory is free...|
    out                 '-- copy --left'
    compute   ..|unpack v: memory for x......|unpack x, waits for `back`..|
    in           '-------- copy -------- back'

Where the plan says so, x is not given back before backward, when some w is unpacked.

A side stream never frees anything (no record_stream): memory would come back when the host happens to notice.
"""

from __future__ import annotations

import weakref
from collections import deque
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor

from outsize.measure.tensors import is_read_otherwise
from outsize.plan.step import Key
from outsize.strategies.overwritten import changed
from outsize.strategies.swap.pinned import Buffer, PinnedPool
from outsize.strategies.swap.schedule import Eager, SwapSchedule
from outsize.strategies.swap.streams import Mark, Streams, Way, open_streams
from outsize.strategies.swap.traffic import Counters, SwapTally


class Mover:
    """Moves tensors of one device; lives as long as a training, and closes its pool with itself.

        with Mover(device, schedule, PinnedPool(device, pinned_bytes)) as mover:
            trip = mover.begin_forward()            # one for each forward
            moved = trip.take(key, tensor)          # in the pack hook, for each storage once, if the plan says so
            trip.packed(key)                        # then, for every key, moved or not
            trip.end_forward()
            trip.unpacking(key)                     # in the unpack hook, for every key, moved or not
            tensor = moved.back()
            trip.unpacked(key)                      # then, for every key, moved or not

    Several forwards may be on their way at once, as in a pipeline: each has its own trip.
    """

    def __init__(
        self,
        device: torch.device,
        times: SwapSchedule | Eager,
        pool: PinnedPool,
        *,
        streams: Streams | None = None,
    ) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.times, self.pool = device, times, pool
        self.streams = open_streams(device) if streams is None else streams
        self.timed = False  # may be set before any forward; costs two marks for each copy and each wait
        self.tally = SwapTally()
        self.num_forgotten = 0  # times that marks were; what was taken before has none to wait for
        self._open: Trip | None = None
        self._dropped: deque[_Rest] = deque()
        self._closed = False

    def __enter__(self) -> Mover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin_forward(self) -> Trip:
        """Return what one forward and its backward call; a forward that broke off is ended first."""
        if self._open is not None:
            self._open.end_forward()
        self.settle()
        self.tally.sum_up()
        self.tally.num_forwards += 1
        self.tally.num_timed += self.timed
        self._open = Trip(self)
        return self._open

    def counters(self) -> Counters:
        """Return what was counted, and count from zero again; waits for copies that are timed and still run."""
        self.tally.sum_up(wait=True)
        counted = self.tally.counters(self.pool)
        self.tally = SwapTally()
        return counted

    def close(self) -> None:
        """Stop, and give the host memory back; what is still away is lost."""
        self._open, self._closed = None, True
        try:
            self.streams.close()
        finally:
            self._dropped.clear()
            self.pool.close()

    def copy(self, way: Way, buffer: Buffer, flat: Tensor, after: Mark) -> Mark:
        """Begin a copy between a buffer and a tensor of the device."""
        host = self.pool.memory(buffer)
        marks = (after,) if buffer.after is None or way == "in" else (after, buffer.after)
        target, source = (host, flat) if way == "out" else (flat, host)
        copy = self.streams.copy(way, target, source, marks, timed=self.timed)
        self.tally.count(way, buffer.size_bytes, copy)
        return copy.end

    def wait(self, mark: Mark) -> None:
        """Let compute wait for a copy."""
        pair = self.streams.wait(mark, timed=self.timed)
        if pair is not None:
            self.tally.waits.append(pair)

    def drop(self, rest: _Rest) -> None:
        """Take over what a tensor leaves that nobody wants any more; done later, this may run anywhere."""
        if not self._closed:
            self._dropped.append(rest)

    def settle(self) -> None:
        """Give back what was dropped: device memory once its copy is over, as always, and then the buffer."""
        while self._dropped:
            rest = self._dropped.popleft()
            if rest.copying is not None:
                self.wait(rest.copying)
            if rest.buffer is not None:
                self.pool.give(rest.buffer, None)

    def rest(self) -> None:
        """Let all copies come to their end, and forget them: what is recorded next must not wait for them."""
        self.settle()
        self.streams.join()
        self.tally.sum_up(wait=True)
        self.pool.forget()

    def forget(self) -> None:
        """Forget the marks of a recording, which nobody outside may wait for; its copies are over in each replay."""
        self._open = None
        self.num_forgotten += 1
        for rest in self._dropped:
            if rest.buffer is not None:
                self.pool.give(rest.buffer, None)
        self._dropped.clear()
        self.pool.forget()

    def ended(self, trip: Trip) -> None:
        """Note that a forward is over."""
        if self._open is trip:
            self._open = None


class Trip:
    """One forward and the backward that belongs to it."""

    def __init__(self, mover: Mover) -> None:
        times = mover.times
        self.mover = mover
        self.num_forgotten = mover.num_forgotten
        self._schedule = times if isinstance(times, SwapSchedule) else SwapSchedule({}, {})
        self._ahead_bytes = times.ahead_bytes if isinstance(times, Eager) else 0
        self._order: list[weakref.ref[MovedStorage]] | None = (
            [] if isinstance(times, Eager) else None
        )  # as taken
        self._moved: weakref.WeakValueDictionary[Key, MovedStorage] = weakref.WeakValueDictionary()
        self._held: dict[Key, int] = {}  # bytes that are taken and not released, in order
        self._held_bytes = 0
        self.coming_bytes = 0  # asked for, and no use waited for them yet

    def take(self, key: Key, tensor: Tensor) -> MovedStorage:
        """Begin to move the storage of a tensor out; its memory stays until its release, or where there is no room."""
        mover = self.mover
        mover.settle()
        tensor = tensor.detach()  # with its version, without the node that will hold it
        if not _plain(tensor, mover.device):
            mover.tally.num_resident += 1
            return MovedStorage(self, key, tensor, None)
        num_bytes = tensor.untyped_storage().nbytes()
        buffer = mover.pool.take(num_bytes)
        if buffer is None:
            mover.tally.num_full += 1
            mover.tally.full_bytes += num_bytes
            return MovedStorage(self, key, tensor, None)
        moved = MovedStorage(self, key, tensor, buffer)
        moved.leave()
        self._moved[key] = moved
        self._held[key] = buffer.size_bytes
        self._held_bytes += buffer.size_bytes
        if self._order is not None:
            moved.place = len(self._order)
            self._order.append(weakref.ref(moved))
            while self._held_bytes > self._ahead_bytes:
                self._release(next(iter(self._held)))
        return moved

    def packed(self, key: Key) -> None:
        """Give back the memory that is due when this is saved."""
        for each in self._schedule.release.get(key, ()):
            self._release(each)

    def end_forward(self) -> None:
        """Give back the memory of all that was taken, but for what backward gives back."""
        for key in [key for key in self._held if key not in self._schedule.staying]:
            self._release(key)
        self.mover.ended(self)

    def unpacking(self, key: Key) -> None:
        """Give back the memory that is due when this is used, before anything is taken for it."""
        for each in self._schedule.late.get(key, ()):
            self._release(each)

    def unpacked(self, key: Key) -> None:
        """Begin to bring back what is due when this is used."""
        due = self._schedule.fetch.get(key)
        if due:
            self.mover.settle()
            self._fetch([found for each in due if (found := self._moved.get(each)) is not None])

    def used(self, moved: MovedStorage) -> None:
        """Without a plan: begin to bring back what was taken before this, as it will be used after."""
        if self._order is None:
            return
        due, num_bytes = [], self.coming_bytes
        for reference in reversed(self._order[: moved.place]):
            found = reference()
            if found is None or not found.is_away:
                continue
            num_bytes += found.num_bytes
            if num_bytes > self._ahead_bytes:
                break
            due.append(found)
        self._fetch(due)

    def _release(self, key: Key) -> None:
        self._held_bytes -= self._held.get(key, 0)
        if self._held.pop(key, None) is not None and (moved := self._moved.get(key)) is not None:
            moved.release()

    def _fetch(self, due: list[MovedStorage]) -> None:
        for moved in due:
            if moved.is_away:
                moved.fetch()


class _Rest(NamedTuple):
    """What a moved storage leaves behind when autograd drops it before its time."""

    tensor: Tensor | None  # held until the copy is over
    copying: Mark | None
    buffer: Buffer | None


class MovedStorage:
    """A storage that was taken: what autograd holds instead of the tensors in it.

         take              release           fetch              back             dropped
    ------|-------------------|-----------------|-----------------|-----------------|---->
     tensor, buffer, copying        buffer        tensor, copying       tensor
    """

    def __init__(self, trip: Trip, key: Key, tensor: Tensor, buffer: Buffer | None) -> None:
        self._trip, self._buffer = trip, buffer
        self._copying: Mark | None = None
        self._tensor: Tensor | None = tensor
        self._released = False  # False: the tensor is the one that was taken
        self._dtype = tensor.dtype
        self._geometry = tensor.shape, tensor.stride(), tensor.storage_offset()
        self._version = self._found = tensor._version
        # of the whole storage, whether it is moved or had to stay
        self.key = key
        self.num_bytes = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0
        self.place = 0  # in the order of taking

    @property
    def geometry(self) -> tuple[torch.Size, tuple[int, ...], int | torch.SymInt]:
        """Size, stride and offset of the tensor as it was taken."""
        return self._geometry

    @property
    def dtype(self) -> torch.dtype:
        """Type of its numbers."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Where it is used."""
        return self._trip.mover.device

    @property
    def overwritten(self) -> bool:
        """Whether it was changed in place after it was taken, as far as that does harm."""
        now = self._found if self._released or self._tensor is None else self._tensor._version
        return now != self._version

    @property
    def is_away(self) -> bool:
        """Whether its bytes are in host memory alone."""
        return self._tensor is None

    def leave(self) -> None:
        """Begin the copy out, as soon as compute has made the tensor."""
        assert self._tensor is not None
        assert self._buffer is not None
        flat = self._tensor.as_strided((self.num_bytes // self._dtype.itemsize,), (1,), 0)
        mover = self._trip.mover
        self._copying = mover.copy("out", self._buffer, flat.view(torch.uint8), mover.streams.now())

    def release(self) -> None:
        """Give the device memory back; compute waits for the copy where it still runs."""
        assert self._tensor is not None
        assert self._copying is not None
        self._trip.mover.wait(self._copying)
        # The copy may have met bytes that were written after they were saved. Autograd complains about such a tensor
        # only if backward asks for it, and so do we; what is written from now on does no harm.
        self._found = self._tensor._version
        self._tensor, self._copying, self._released = None, None, True

    def fetch(self) -> None:
        """Take device memory and begin the copy back; the buffer is free for whoever writes behind this copy."""
        assert self._buffer is not None
        mover = self._trip.mover
        flat = torch.empty(self.num_bytes // self._dtype.itemsize, dtype=self._dtype, device=mover.device)
        self._copying = mover.copy("in", self._buffer, flat.view(torch.uint8), mover.streams.now())
        self._tensor = flat.as_strided(*self._geometry)
        mover.pool.give(self._buffer, self._copying)
        self._buffer = None
        self._trip.coming_bytes += self.num_bytes

    def back(self) -> Tensor:
        """Return the tensor as it was taken, in a storage as long as its own was: views of that find their bytes."""
        mover = self._trip.mover
        if not self._released:
            assert self._tensor is not None
            self._found = self._tensor._version
        if self._found != self._version:
            raise changed(self.key[0], self._version, self._found)
        if self._tensor is None:
            mover.settle()
            mover.tally.num_on_demand += 1
            self.fetch()
        if self._released and self._copying is not None:
            mover.wait(self._copying)
            self._copying = None
            self._trip.coming_bytes -= self.num_bytes
        self._trip.used(self)
        assert self._tensor is not None
        return self._tensor

    def __del__(self) -> None:
        if self._buffer is not None or self._copying is not None:
            known = self._trip.num_forgotten == self._trip.mover.num_forgotten
            self._trip.mover.drop(_Rest(self._tensor, self._copying if known else None, self._buffer))
            if self._buffer is None:
                self._trip.coming_bytes -= self.num_bytes


def _plain(tensor: Tensor, device: torch.device) -> bool:
    """Whether its bytes are all there is to it."""
    num_bytes = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0
    changed_when_read = is_read_otherwise(tensor) or tensor.is_quantized
    whole = num_bytes > 0 and num_bytes % tensor.dtype.itemsize == 0
    return type(tensor) is Tensor and tensor.device == device and whole and not changed_when_read
