"""Sees whether a GPU or the cores work for others, too: what is found out beside them is not their own."""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from collections.abc import Sequence

import torch

# Together some 50 ms, several turns of a GPU that goes from one process to the next every few of them. Its queue has
# room for about a thousand, so that it never waits for the host.
_NUM_WAITS, _CYCLES = 400, 250_000
_DRAWN_OUT = 1.25
_HASHED, _NUM_HASHES = bytes(2**20), 60  # a loop of some tens of ms


def is_shared(device: torch.device) -> bool:
    """Tell whether others' work comes between ours.

        alone   |wait|wait|wait|wait|wait|wait|
        shared  |wait|wait|wait|.... others ....|wait|wait|

    A GPU is lent to one process at a time: most of many short kernels take their own time, and a few all the others'.
    """
    return device.type == "cuda" and _is_drawn_out(_waits_s(device))


def _is_drawn_out(waits_s: Sequence[float]) -> bool:
    """Tell whether all took longer together than most of them do: interruptions are few, and only the mean has them."""
    return statistics.fmean(waits_s) > _DRAWN_OUT * statistics.median(waits_s)


def _waits_s(device: torch.device) -> list[float]:
    """Return what each of many kernels took that do nothing for a while, called one after another."""
    with torch.cuda.device(device):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(_NUM_WAITS + 1)]
        marks[0].record()
        for mark in marks[1:]:
            torch.cuda._sleep(_CYCLES)  # torch's only name for it
            mark.record()
        marks[-1].synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(marks)]


def crowding() -> float:
    """Return how many times as long a loop that only computes takes as its own time: 1 with a core to itself."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(_NUM_HASHES):
        hashlib.sha256(_HASHED).digest()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return max(1.0, wall_s / cpu_s) if cpu_s > 0 else 1.0
