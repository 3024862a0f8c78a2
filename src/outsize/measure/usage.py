"""What a verb takes of the machine while it runs: seconds per image, GPU use and memory, CPU load, host memory."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

from outsize.runs import read_json, write_json

USAGE = "usage.json"  # in a run folder: one entry for each verb
_EVERY_S = 0.5

GpuLook = Callable[
    [], tuple[float, int]
]  # -> share of time that kernels ran of late, bytes in use by all processes


class Usage:
    """Counts from the moment it is made; `summary` says what was taken until then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = psutil.Process()
        self._start_s = time.perf_counter()
        self._start_cpu_s = _cpu_s(self._process)
        self._look = _gpu_look(device)
        self._host_bytes = 0
        self._gpu_bytes = 0
        self._gpu_shares: list[float] = []
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def sample(self) -> None:
        """Look once at what has no counter of its own."""
        self._host_bytes = max(self._host_bytes, _resident_bytes(self._process))
        if self._look is not None:
            share, num_bytes = self._look()
            self._gpu_shares.append(share)
            self._gpu_bytes = max(self._gpu_bytes, num_bytes)

    def latest(self) -> dict[str, float]:
        """Return the use that was seen last and the most memory so far, as far as this machine tells."""
        shares = self._gpu_shares
        found = {"gpu_use": shares[-1] if shares else 0, "gpu_bytes": self._gpu_bytes}
        found = found if self._look is not None else {}
        return {**found, **({"host_bytes": self._host_bytes} if self._host_bytes else {})}

    def summary(self, num_images: int, *, images_at_once: int | None = None) -> dict[str, Any]:
        """Return the figures of so many images; None where this machine does not tell."""
        self.sample()
        seconds = time.perf_counter() - self._start_s
        cpu_s = _cpu_s(self._process) - self._start_cpu_s
        on_gpu = self._device.type == "cuda"
        shares = self._gpu_shares
        return {
            "device": torch.cuda.get_device_name(self._device) if on_gpu else platform.machine() + " CPU",
            "num_gpus": int(on_gpu),
            "num_cpus": psutil.cpu_count() or 1,
            "images_per_device": images_at_once,
            "num_images": num_images,
            "seconds": round(seconds, 3),
            "s_per_image": round(seconds / num_images, 5) if num_images else None,
            "gpu_use": round(sum(shares) / len(shares), 4) if shares else None,
            "gpu_bytes": self._gpu_bytes or None,  # of the whole GPU
            "gpu_own_bytes": int(torch.cuda.max_memory_allocated(self._device)) if on_gpu else None,
            "cpu_load": round(cpu_s / seconds / (psutil.cpu_count() or 1), 4),  # of all cores
            "host_bytes": self._host_bytes,
        }


@contextmanager
def watching(device: torch.device, every_s: float = _EVERY_S) -> Iterator[Usage]:
    """Watch the machine from a thread of its own while the block runs."""
    usage, done = Usage(device), threading.Event()

    def watch() -> None:
        while not done.wait(every_s):
            usage.sample()

    thread = threading.Thread(target=watch, name="usage", daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        done.set()
        thread.join()


def write_usage(run: Path, verb: str, summary: dict[str, Any]) -> None:
    """Leave the figures of a verb in a run folder, beside those of others."""
    path = run / USAGE
    known = read_json(path, "train") if path.is_file() else {}
    write_json(path, {**known, verb: summary})


def _cpu_s(process: psutil.Process) -> float:
    """Return the seconds that this process and those it started have computed."""
    own = process.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # ended meanwhile, and counted among the children above from now on
            continue
        total += times.user + times.system
    return float(total)


def _resident_bytes(process: psutil.Process) -> int:
    total = process.memory_info().rss
    for child in process.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return int(total)


def _gpu_look(device: torch.device) -> GpuLook | None:
    """Return how to look at a GPU: by nvidia-ml-py, or else by nvidia-smi; None on a CPU, and where neither is."""
    if device.type != "cuda":
        return None
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    by_library = _look_by_library(name) if importlib.util.find_spec("pynvml") is not None else None
    return by_library or _look_by_program(name)


def _look_by_library(name: str) -> GpuLook | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError:
        return None

    def look() -> tuple[float, int]:
        try:
            share = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            return share, int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except pynvml.NVMLError:  # a virtual GPU may tell one and not the other
            return 0.0, 0

    return look


def _look_by_program(name: str) -> GpuLook | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    asked = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]

    def look() -> tuple[float, int]:
        try:
            done = subprocess.run(
                [program, "-i", name, *asked], capture_output=True, text=True, timeout=10, check=True
            )
            percent, used_mib = (float(each) for each in done.stdout.split(","))
        except (
            subprocess.SubprocessError,
            OSError,
            ValueError,
        ):  # "[N/A]" of a virtual GPU, or too busy to say
            return 0.0, 0
        return percent / 100, int(used_mib) << 20

    return look
