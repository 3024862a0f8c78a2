"""The machine at hand: its devices, and what it has of memory and cores."""

from __future__ import annotations

import platform

import psutil
import torch

from outsize.data.feeding import num_cores
from outsize.errors import JobError, explain
from outsize.measure.machine.host import free_host_bytes
from outsize.measure.memory import free_gpu_bytes
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


def look_at_machine(device: torch.device) -> Machine:
    """Return name, memory and cores of the device and its host."""
    free_bytes = free_host_bytes()
    if device.type == "cuda":
        gpu_bytes = torch.cuda.mem_get_info(device)[1]
        name = torch.cuda.get_device_name(device)
        return Machine(str(device), name, gpu_bytes, free_gpu_bytes(device), num_cores(), free_bytes)
    name, all_bytes = platform.processor() or platform.machine(), int(psutil.virtual_memory().total)
    return Machine("cpu", name, all_bytes, free_bytes, num_cores(), free_bytes)
