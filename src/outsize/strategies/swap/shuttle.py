"""Moves saved tensors of one training to host memory and back, by a plan; who packs them says which they are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from outsize.plan.plan import Swap
from outsize.strategies.swap.move import Mover, Trip
from outsize.strategies.swap.pinned import PinnedPool
from outsize.strategies.swap.schedule import Eager, SwapSchedule
from outsize.strategies.swap.traffic import Counters, Sums, SwapTally

# Marks for times cost the host a little: one forward of so many has them, not one of the first, which warm up.
_TIMED_EVERY, _TIMED_AT = 50, 2


class Shuttle:
    """Moves what a plan names, in each forward of a training; host memory is taken by the first one."""

    def __init__(self, device: torch.device, swap: Swap, tell: Callable[[str], object]) -> None:
        self.swap, self.tell, self._device = swap, tell, device
        late = {each.key for each in swap.moved if each.late}
        by_plan = SwapSchedule.of(((each.key, each.release, each.fetch) for each in swap.moved), late)
        self._times = by_plan if swap.ahead_bytes is None else Eager(swap.ahead_bytes)
        self.signals = by_plan.fetch.keys() | by_plan.late.keys()
        self._mover: Mover | None = None
        self.has_warned = False  # that a step does otherwise than planned: once in a training
        self._is_recorded = False
        self._before: Sums | None = None
        self._each: Sums | None = None  # of a forward that was recorded
        self.num_met: int | None = None  # of the tensors that the plan names, by the latest forward

    def begin_forward(self) -> Trip:
        """Return what one forward and its backward call; the first one takes host memory."""
        if self._mover is None:
            pool = PinnedPool(self._device, self.swap.pinned_bytes, tell=self.tell)
            self._mover = Mover(self._device, self._times, pool)
            # also where nobody closes it; not at the end of the process, when the driver may be gone
            weakref.finalize(self, self._mover.close).atexit = False
        mover = self._mover
        mover.timed = not self._is_recorded and mover.tally.num_forwards % _TIMED_EVERY == _TIMED_AT
        return mover.begin_forward()

    def end_forward(self, num_met: int, num_changed: int) -> bool:
        """Count what a forward did otherwise than planned, and say whether it met fewer tensors than the one before."""
        assert self._mover is not None
        before, self.num_met = self.num_met, num_met
        self._mover.tally.num_unmet += len(self.swap.moved) - num_met if self.swap.ahead_bytes is None else 0
        self._mover.tally.num_changed += num_changed
        return before is not None and num_met < before

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
