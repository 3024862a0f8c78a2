"""Times and weighs steps: events and the allocator's counters on a GPU, the clock and live storages on a CPU.

A turn of one way, the process capped so that memory beyond is really gone:

    cache emptied, cap set | a few steps, not timed | begin, several steps on end, end | cap lifted
                           '--- peaks of allocated and of reserved memory are those of here to there
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from outsize.measure.memory import LiveBytes, num_closed_gaps, sweep

NUM_WARM = {"cuda": 4, "cpu": 1}  # the first asks the driver for memory, and the host falls behind
NUM_TIMED = {"cuda": 8, "cpu": 2}

Run = Callable[[], object]


@dataclass(frozen=True)
class Turn:
    """What one turn of a way showed."""

    ms: float  # of one step
    peak_bytes: int | None = None  # allocated; None: not to be seen while the clock runs
    reserved_bytes: int | None = None  # by torch's allocator
    idle_bytes: int | None = None  # allocated before the turn, by everything that stays
    num_retries: int = 0  # times that the allocator had to give memory back before it could take some


def take_turn(run: Run, device: torch.device, *, cap_bytes: int | None = None) -> Turn:
    """Run a step a few times and return what was seen; on a GPU under a cap, where one is given."""
    if device.type == "cuda":
        with torch.cuda.device(device), capped(device, cap_bytes):
            return _turn_on_gpu(run, device)
    for _ in range(NUM_WARM["cpu"]):
        run()
    start_s = time.perf_counter()
    for _ in range(NUM_TIMED["cpu"]):
        run()
    return Turn(1e3 * (time.perf_counter() - start_s) / NUM_TIMED["cpu"])


def weigh_on_cpu(run: Run, lasting_bytes: int) -> int:
    """Return the peak of a step on a CPU, beside what is there before; compiled code cannot be looked into."""
    with LiveBytes() as live:
        run()
    return lasting_bytes + int(live.peak_bytes)


@contextmanager
def capped(device: torch.device, cap_bytes: int | None) -> Iterator[None]:
    """Inside the block torch's allocator holds at most so many bytes of a GPU; what it holds idle is let go first."""
    torch.cuda.synchronize(device)
    sweep(device)
    total_bytes = torch.cuda.mem_get_info(device)[1]
    share = 1.0 if cap_bytes is None else min(1.0, cap_bytes / total_bytes)
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _turn_on_gpu(run: Run, device: torch.device) -> Turn:
    idle_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(NUM_WARM["cuda"]):
        run()
    retries = num_closed_gaps(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()  # behind the steps before, without waiting for them, as a training goes on
    for _ in range(NUM_TIMED["cuda"]):
        run()
    end.record()
    torch.cuda.synchronize(device)
    return Turn(
        begin.elapsed_time(end) / NUM_TIMED["cuda"],
        torch.cuda.max_memory_allocated(device),
        torch.cuda.max_memory_reserved(device),
        idle_bytes,
        num_closed_gaps(device) - retries,
    )
