"""Micro-batches: some samples of a batch at a time."""

from __future__ import annotations

from functools import partial

from outsize.data.batch import Batch
from outsize.strategies.step import Step, in_parts


def micro_batched(step: Step, num_parts: int) -> Step:
    """Return the step that runs a batch in at most `num_parts` parts."""
    return in_parts(step, partial(_samples, num_parts=num_parts), Batch.part)


def _samples(batch: Batch, num_parts: int) -> list[slice]:
    """Share samples out in as few parts as keep the largest small: 5 samples in 4 parts are 2 + 2 + 1."""
    num_samples = len(batch.images)
    most = -(-num_samples // num_parts)
    return [slice(start, start + most) for start in range(0, num_samples, most)]
