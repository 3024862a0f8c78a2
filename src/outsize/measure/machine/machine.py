"""The machine at hand: facts about it, and its memory given back."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from outsize.data.feeding.loader import num_cores
from outsize.errors import JobError, explain
from outsize.measure.machine.host import free_host_bytes
from outsize.plan.facts import Machine


def pick_device(name: str) -> torch.device:
    """Turn "auto", "cpu", "cuda" or "cuda:1" into a device that is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cuda" and torch.cuda.is_available():
        index = torch.cuda.current_device() if device.index is None else device.index
        if index < torch.cuda.device_count():
            return torch.device("cuda", index)
    if device.type == "cpu":
        return device
    there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    raise JobError(explain("no such device", name, f"one of {', '.join(there)}", "choose with --device"))


def free_gpu_bytes(device: torch.device) -> int:
    """Return what this process may still take of a GPU: what nobody holds, as far as a cap of its own leaves it."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    share = torch.cuda.get_per_process_memory_fraction(device)
    if share >= 1:
        return free_bytes
    return max(0, min(free_bytes, int(share * total_bytes) - torch.cuda.memory_reserved(device)))


@contextmanager
def capped(device: torch.device, most_bytes: int) -> Iterator[None]:
    """Let torch hold no more of a GPU inside the block; 0 bounds nothing. What it holds already counts."""
    before = torch.cuda.get_per_process_memory_fraction(device)
    if most_bytes > 0:
        total_bytes = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(before, most_bytes / total_bytes), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def sweep(device: torch.device) -> None:
    """Give memory back that nobody uses any more, also in circles of objects, as the frames of a failed attempt are."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def look_at_machine(device: torch.device) -> Machine:
    """Return name, memory and cores of the device and its host."""
    free_bytes = free_host_bytes()
    if device.type == "cuda":
        gpu_bytes = torch.cuda.mem_get_info(device)[1]
        name = torch.cuda.get_device_name(device)
        return Machine(str(device), name, gpu_bytes, free_gpu_bytes(device), num_cores(), free_bytes)
    name, all_bytes = platform.processor() or platform.machine(), int(psutil.virtual_memory().total)
    return Machine("cpu", name, all_bytes, free_bytes, num_cores(), free_bytes)
