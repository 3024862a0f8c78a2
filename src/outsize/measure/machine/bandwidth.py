"""Measures once what this machine does in a second, and remembers it."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outsize.measure.memory import free_gpu_bytes, sweep
from outsize.measure.remembered import device_name, driver, fingerprint, is_between, recall_or_make
from outsize.plan.machines import GIB
from outsize.plan.times import CONVOLUTION_CALLS, GRADIENT_CALLS, Precision, Rates

BUDGET_S = 4.0  # of timed work; loading of CUDA's libraries comes on top the first time
_LONG_ENOUGH_S = 0.01  # between two looks at the clock: starting a kernel is then lost in it
# What no machine falls short of or goes beyond, by far: rates a second, and seconds of a call
_SLOWEST_PER_S, _FASTEST_PER_S = 1e5, 1e18
_QUICKEST_CALL_S, _LONGEST_CALL_S = 1e-9, 1.0
_DTYPE = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class _Work:
    """How large the work is that is timed; the larger, the nearer to what the device can do."""

    room_bytes: int  # that a device must have for it
    side: int  # of matrices
    batch: int  # of images of 128 x 128
    channels: int
    copied_bytes: int


_ON_CPU = _Work(0, 1024, 1, 64, 2**28)
# take up to 3 GiB, and 0.7; the last is in part of a size for caches: a guess for now, not to be remembered
_ON_GPU = (_Work(4 * GIB, 8192, 16, 256, 2**30), _Work(GIB, 4096, 4, 256, 2**28))
_ON_FULL_GPU = _Work(0, 2048, 1, 256, 2**26)


@dataclass(frozen=True)
class Measured:
    """What was seen, and on what: rates are those of the fastest quarter of the runs."""

    fingerprint: str
    device: str
    driver: str
    torch: str
    matmul_flops_per_s: dict[str, float]  # by precision
    conv_flops_per_s: dict[str, float]
    memory_bytes_per_s: float
    to_device_bytes_per_s: float | None
    to_host_bytes_per_s: float | None
    host_op_s: float  # for the host to call one small operation
    took_s: float
    is_rough: bool = False  # by work too small to tell, for want of room

    def rates(self) -> Rates:
        """Return the form that a plan is made from; for each precision the better of both kinds of arithmetic."""
        best = {
            precision: max(rate, self.conv_flops_per_s[precision])
            for precision, rate in self.matmul_flops_per_s.items()
        }
        return Rates(
            fp32_flops_per_s=best["fp32"],
            tf32_flops_per_s=best.get("tf32"),
            fp16_flops_per_s=best.get("fp16"),
            bf16_flops_per_s=best.get("bf16"),
            memory_bytes_per_s=self.memory_bytes_per_s,
            to_device_bytes_per_s=self.to_device_bytes_per_s,
            to_host_bytes_per_s=self.to_host_bytes_per_s,
            crowded_bytes_per_s=None,  # other GPUs may be at work for others
            origin="measured",
            host_op_s=self.host_op_s,
        )


def machine_rates(device: torch.device, *, room_bytes: float = math.inf) -> Rates:
    """Return the rates of a device: remembered ones, or measured now and remembered; by work that has room."""
    return recall_or_measure(device, room_bytes=room_bytes).rates()


def recall_or_measure(device: torch.device, *, room_bytes: float = math.inf) -> Measured:
    """Return what was remembered of this very device, driver and torch, or measure it."""
    here = fingerprint(device)
    return recall_or_make(
        f"machine-{here}.json",
        device,
        read=lambda tree: _read(tree, here),
        make=lambda: measure(device, room_bytes=room_bytes),
        lasts=lambda found: not found.is_rough,
    )


def measure(device: torch.device, *, budget_s: float = BUDGET_S, room_bytes: float = math.inf) -> Measured:
    """Time matrix products, convolutions, calls, copies in memory and copies over the link on random numbers."""
    start_s = time.perf_counter()
    cuda = device.type == "cuda"
    precisions = _precisions(device)
    sweep(device)
    work = _work_for(device, room_bytes)
    turn_s = budget_s / (2 * len(precisions) + (4 if cuda else 2))
    matmul: dict[str, float] = {}
    conv: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        if cuda:
            stack.enter_context(torch.cuda.device(device))
            stack.callback(sweep, device)  # what was lent for this is not to be missing in a plan
        host_op_s = _host_op_s(device, turn_s)
        stack.enter_context(torch.inference_mode())
        for precision in precisions:
            with _only(precision, cuda):
                matmul[precision] = _matmul_flops_per_s(device, work, _DTYPE[precision], turn_s)
                conv[precision] = _conv_flops_per_s(device, work, _DTYPE[precision], turn_s)
        memory = _memory_bytes_per_s(device, work, turn_s)
        to_device, to_host = _link_bytes_per_s(device, work, turn_s) if cuda else (None, None)
    return Measured(
        fingerprint=fingerprint(device),
        device=device_name(device),
        driver=driver(device),
        torch=torch.__version__,
        matmul_flops_per_s=matmul,
        conv_flops_per_s=conv,
        memory_bytes_per_s=memory,
        to_device_bytes_per_s=to_device,
        to_host_bytes_per_s=to_host,
        host_op_s=host_op_s,
        took_s=time.perf_counter() - start_s,
        is_rough=work is _ON_FULL_GPU,
    )


def _precisions(device: torch.device) -> list[Precision]:
    """List what the device has units for; on a CPU float32 alone, as half precision is emulated on most."""
    if device.type != "cuda":
        return ["fp32"]
    found: list[Precision] = ["fp32"]
    capability = torch.cuda.get_device_capability(device)
    if capability >= (7, 0):
        found.append("fp16")
    if capability >= (8, 0):
        found += ["tf32", "bf16"]
    return found


@contextlib.contextmanager
def _only(precision: Precision, cuda: bool) -> Iterator[None]:
    """Let float32 be rounded to tf32 if and only if that is what is measured; settings are as before afterwards."""
    if not cuda:
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=precision == "tf32"):
            yield
    finally:
        matmul.fp32_precision = before


def _matmul_flops_per_s(device: torch.device, work: _Work, dtype: torch.dtype, turn_s: float) -> float:
    side = work.side
    left, right = (_random((side, side), device, dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * side**3 / _seconds(lambda: torch.mm(left, right, out=out), device, turn_s)


def _conv_flops_per_s(device: torch.device, work: _Work, dtype: torch.dtype, turn_s: float) -> float:
    """Time a layer from the middle of a U-Net: 3 x 3, as many channels out as in, channels last."""
    batch, channels = work.batch, work.channels
    images = _random((batch, channels, 128, 128), device, dtype)
    kernel = _random((channels, channels, 3, 3), device, dtype)
    images, kernel = (each.contiguous(memory_format=torch.channels_last) for each in (images, kernel))
    flops = 2 * batch * 128**2 * channels**2 * 9
    return flops / _seconds(lambda: torch.nn.functional.conv2d(images, kernel, padding=1), device, turn_s)


def _memory_bytes_per_s(device: torch.device, work: _Work, turn_s: float) -> float:
    """Time a copy too large for any cache; each byte is read and written."""
    # written to, or all its pages would be one page of zeros
    source = torch.ones(work.copied_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * work.copied_bytes / _seconds(lambda: target.copy_(source), device, turn_s)


def _link_bytes_per_s(device: torch.device, work: _Work, turn_s: float) -> tuple[float, float]:
    size_bytes = min(work.copied_bytes, 2**28)
    there = _random((size_bytes // 4,), device, torch.float32)
    here = torch.empty(size_bytes // 4, pin_memory=True)
    to_host_s = _seconds(lambda: here.copy_(there, non_blocking=True), device, turn_s)
    to_device_s = _seconds(lambda: there.copy_(here, non_blocking=True), device, turn_s)
    return size_bytes / to_device_s, size_bytes / to_host_s


def _host_op_s(device: torch.device, turn_s: float) -> float:
    """Time forward and backward of layers too small to keep any device busy; a GPU is not waited for."""
    num_layers = 8
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        layers = [
            [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
            for _ in range(num_layers)
        ]
        net = nn.Sequential(*itertools.chain(*layers)).to(device)
        images = torch.randn(2, 8, 8, 8).to(device)
        taken_s: list[float] = []
        end_s = time.perf_counter() + turn_s
        while len(taken_s) < 6 or time.perf_counter() < end_s:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start_s = time.perf_counter()
            net(images).sum().backward()
            taken_s.append(time.perf_counter() - start_s)
            net.zero_grad(set_to_none=True)
    # forward norm, its counter and ReLU, backward norm and ReLU; the sum
    num_calls = num_layers * (CONVOLUTION_CALLS + GRADIENT_CALLS + 5) + 1
    return sorted(taken_s[2:])[(len(taken_s) - 2) // 4] / num_calls


def _work_for(device: torch.device, most_bytes: float = math.inf) -> _Work:
    """Choose the largest work that there is room for, and that stays within what a job may take."""
    if device.type != "cuda":
        return _ON_CPU
    room_bytes = min(most_bytes, free_gpu_bytes(device))
    return next((each for each in _ON_GPU if room_bytes >= each.room_bytes), _ON_FULL_GPU)


def _random(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Draw numbers from a source of our own: a GPU clocks higher on zeros, and the user's draws stay as they were."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, device=device, generator=generator).to(dtype)


def _seconds(run: Callable[[], Tensor], device: torch.device, turn_s: float) -> float:
    """Return the time of one run: of many, after two for nothing, that of the quarter which is fastest.

    What neighbours on the machine take is not the machine's, so not the median; one lucky run is not it either.
    """
    end_s = time.perf_counter() + turn_s
    clock = _cuda_s if device.type == "cuda" else _cpu_s
    once_s = min(clock(run, 1) for _ in range(2))
    num_runs = max(1, min(50, math.ceil(_LONG_ENOUGH_S / once_s)))
    taken_s = [clock(run, num_runs)]
    while time.perf_counter() < end_s:
        taken_s.append(clock(run, num_runs))
    return sorted(taken_s)[len(taken_s) // 4]


def _cpu_s(run: Callable[[], Tensor], num_runs: int) -> float:
    start_s = time.perf_counter()
    for _ in range(num_runs):
        run()
    return (time.perf_counter() - start_s) / num_runs


def _cuda_s(run: Callable[[], Tensor], num_runs: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(num_runs):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / num_runs


def _read(tree: Any, here: str) -> Measured | None:
    """Return the measurement that a tree is; None, or an error, where it is of another machine or not sound."""
    known = Measured(**tree)
    numbers = [
        known.memory_bytes_per_s,
        *known.matmul_flops_per_s.values(),
        *known.conv_flops_per_s.values(),
    ]
    numbers += [rate for rate in (known.to_device_bytes_per_s, known.to_host_bytes_per_s) if rate is not None]
    sound = is_between(_SLOWEST_PER_S, numbers, _FASTEST_PER_S)
    sound &= is_between(_QUICKEST_CALL_S, [known.host_op_s], _LONGEST_CALL_S)
    known.rates()
    return known if sound and known.fingerprint == here else None
