"""Tells how long a device had nothing to do because its next batch was not there."""

from __future__ import annotations

import time
from functools import lru_cache

import torch


class BatchWaits:
    """Times the waits for batches, one after the other.

    A host runs ahead of its GPU: it may wait for nearly as long as a step takes, and the GPU not at all. What counts is
    the time from the end of the GPU's work to the arrival of the batch, where that comes later:

        host    |step 1|.......... waits ............|step 2|
        GPU      ####### step 1 ########              ########
                                        ^-- counted --^
    """

    def __init__(self) -> None:
        self._worked: torch.cuda.Event | None = None  # behind all work that was called so far
        self._arrived: torch.cuda.Event | None = None
        self._wait_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin to wait."""
        self._began_s = time.perf_counter()

    def end(self, device: torch.device) -> None:
        """Say that a batch is there, or on its way to the device."""
        self._device, self._arrived = device, None
        self._wait_s = time.perf_counter() - self._began_s
        if (
            self._worked is None
        ):  # a CPU is through with what was called; a GPU had no work before the first step
            return
        if self._worked.query():
            self._arrived = _mark_now(device)
        else:
            self._wait_s = 0.0

    def mark_work(self) -> None:
        """Say that all work on the batch has been called."""
        if self._worked is not None and self._arrived is not None:
            self._arrived.synchronize()  # which takes no time: nothing was before it
            self._wait_s = min(self._wait_s, self._worked.elapsed_time(self._arrived) / 1e3)
        self._worked = _mark_work(self._device)

    def seconds(self) -> float:
        """Return how long the last wait was, once the work on its batch was marked."""
        return self._wait_s


def _mark_work(device: torch.device) -> torch.cuda.Event | None:
    """Return what tells when a GPU is through with all that was called so far; a CPU always is."""
    return _mark(torch.cuda.current_stream(device)) if device.type == "cuda" else None


def _mark_now(device: torch.device) -> torch.cuda.Event:
    """Return a mark beside the work: in its stream, the copy of the batch would come first."""
    return _mark(_beside(device))


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


@lru_cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
