"""Copies batches to a device, and tells how long that took without ever waiting for it."""

from __future__ import annotations

from collections import deque

import torch

from outsize.data.batch import Batch


class Copies:
    """Copies batches where kernels run, in their order; a mark before and one behind each copy tell its time.

    host      copy 1  step 1 ....... copy 2  step 2 .......            what is over is read when the next is asked for:
    device           |=|##############     |=|##############           nobody waits for a mark
                     ^ ^                   ^ ^
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def copy(self, batch: Batch) -> Batch:
        """Return a batch on the device, or on its way there."""
        if self._device.type != "cuda":
            return batch.to(self._device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self._device)  # which need not be that of the first GPU
        begin.record(stream)
        copied = batch.to(self._device)
        end.record(stream)
        self._marks.append((begin, end))
        return copied

    def seconds(self) -> float:
        """Return the time of those copies that came to their end since the last call."""
        total_s = 0.0
        while self._marks and self._marks[0][1].query():
            begin, end = self._marks.popleft()
            total_s += begin.elapsed_time(end) / 1e3
        return total_s
