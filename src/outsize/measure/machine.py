"""Facts about the machine at hand."""

from __future__ import annotations

import platform

import psutil
import torch

from outsize.data.loader import num_cores
from outsize.errors import JobError, explain
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
    host = psutil.virtual_memory()
    free_bytes = min(host.available, _cgroup_free_bytes())
    if device.type == "cuda":
        gpu_free_bytes, gpu_bytes = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return Machine(str(device), name, gpu_bytes, gpu_free_bytes, num_cores(), free_bytes)
    return Machine(
        "cpu", platform.processor() or platform.machine(), host.total, free_bytes, num_cores(), free_bytes
    )


def _cgroup_free_bytes() -> int:
    """Return what a container's limit leaves, or a very large number where there is none."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit_file:  # noqa: PTH123
            limit = limit_file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as used_file:  # noqa: PTH123
            used = used_file.read().strip()
    except OSError:
        return 1 << 62
    return (1 << 62) if limit == "max" else max(0, int(limit) - int(used))
