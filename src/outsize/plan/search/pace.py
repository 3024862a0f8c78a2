"""What a second of the device and a call of the host cost a step: whichever of the two is slower decides.

device-bound   host    |c|c|c| waits ..          a call more costs nothing as long as the host is ahead
               device    |==k==|==k==|==k==|
host-bound     host    |call|call|call|call|     a kernel more costs nothing, each call is paid in full
               device    |k|    |k|    |k|
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outsize.plan.memory import Movable
from outsize.plan.search.choice import Item
from outsize.plan.step import StepOp
from outsize.plan.times import MOVED_CALLS, OpSeconds, host_calls, remade_calls, together

_LEAST, _STEEP = (
    0.05,
    2.5,
)  # of a second: of the faster side, and how soon that is reached as the two grow apart


@dataclass(frozen=True)
class HostAndDevice:
    """What a step takes of device and host as it is, and what the host takes for a small operation."""

    device_s: float = 0.0
    num_calls: float = 0.0
    host_op_s: float = 0.0  # 0: calls cost nothing, as in a step that is captured
    overlaps: bool = True

    @classmethod
    def of(
        cls,
        ops: Iterable[StepOp],
        op_s: OpSeconds,
        host_op_s: float,
        more_calls: float = 0.0,
        *,
        overlaps: bool,
    ) -> HostAndDevice:
        """Return the pace of a step of these operations, with so many calls besides."""
        listed = list(ops)
        return cls(sum(map(op_s, listed)), sum(map(host_calls, listed)) + more_calls, host_op_s, overlaps)

    @property
    def host_s(self) -> float:
        """What the host takes to call all of it."""
        return self.num_calls * self.host_op_s

    @property
    def waits_for_host(self) -> bool:
        """Whether the host is the slower side."""
        return self.overlaps and self.host_s > self.device_s

    @property
    def weights(self) -> tuple[float, float]:
        """What a second of the device and one of the host are worth."""
        if not self.overlaps:
            return 1.0, 1.0
        if not self.host_op_s:
            return 1.0, 0.0
        lead = _STEEP * (self.device_s - self.host_s) / max(self.device_s, self.host_s, 1e-12)
        return min(1.0, max(_LEAST, 0.5 + lead)), min(1.0, max(_LEAST, 0.5 - lead))

    def price_s(self, device_s: float, num_calls: float) -> float:
        """Return what so much more of both is worth."""
        device, host = self.weights
        return device * device_s + host * self.host_op_s * num_calls

    def delay_s(self, device_s: float, num_calls: float) -> float:
        """Return by how much what comes after begins later."""
        host_s = self.host_op_s * num_calls
        if not self.overlaps:
            return device_s + host_s
        return host_s if self.waits_for_host else device_s

    def times(self, ops: Sequence[StepOp], op_s: OpSeconds) -> list[float]:
        """Return by how much each operation begins after the one before it."""
        return [self.delay_s(op_s(op), host_calls(op)) for op in ops]

    def extra_s(self, device_s: float, num_calls: float) -> float:
        """Return by how much a step is longer that does so much more."""
        if not self.host_op_s:
            return device_s
        host_s = self.host_s + self.host_op_s * num_calls
        after_s = together(self.device_s + device_s, host_s, overlaps=self.overlaps)
        return after_s - together(self.device_s, self.host_s, overlaps=self.overlaps)


@dataclass(frozen=True)
class Room:
    """What there is besides the budget of tensors on the device."""

    host_bytes: float = math.inf  # of host memory, that moved tensors may fill
    held_bytes: float = math.inf  # that the device's allocator may hold, with gaps between tensors
    pace: HostAndDevice | None = None  # of the step, where calls of the host cost something


def calls_of(item: Item) -> float:
    """Return what the host spends on an item."""
    return MOVED_CALLS if isinstance(item, Movable) else remade_calls(item.ops)
