"""Feeds the loop: batches made ahead by threads, in order, already on their way to the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.blocks import count_classes
from outsize.data.loader import prefetch
from outsize.data.sample import Batch, collate
from outsize.data.sampling import Seen
from outsize.data.windows import TrainingWindows

# Seconds after which a thread that prepares samples lets the training thread on. That one gives way at each of the
# hundreds of kernels it launches in a step; with Python's 5 ms it would often wait longer than the kernel runs.
_SWITCH_INTERVAL_S = 2e-4


@dataclass(frozen=True)
class Feed:
    """Where batches come from; which ones they are depends on epoch and step alone."""

    windows: TrainingWindows
    count_terms: Callable[[Tensor], Mapping[str, float]]
    seen: Seen  # classes met in the epoch at hand
    steps_per_epoch: int
    batch: int
    num_threads: int
    device: torch.device

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from a step on."""
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            yield from self._batches(epoch, first_step)
        finally:
            sys.setswitchinterval(before_s)

    def _batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        def make(step: int) -> tuple[Batch, NDArray[np.int64]]:
            first = step * self.batch
            samples = [self.windows.sample(epoch, first + number) for number in range(self.batch)]
            batch = collate(samples, self.count_terms)
            num_px = count_classes([sample.labels for sample in samples], len(self.seen.names))
            # pinned, or the copy would wait for all kernels of the step before
            return (batch.pinned() if self.device.type == "cuda" else batch), num_px

        self.seen.clear()
        # from the first, also where a training is resumed in the middle: what was seen is that of the whole epoch
        made = prefetch(
            make, range(self.steps_per_epoch), num_threads=self.num_threads, num_ahead=2 * self.num_threads
        )
        for step, (batch, num_px) in enumerate(made):
            self.seen.add(num_px)
            if step >= first_step:
                yield batch.to(self.device)
