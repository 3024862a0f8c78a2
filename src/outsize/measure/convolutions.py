"""Sees what each convolution of a real step on a GPU takes: memory that it gives back, and time of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.plan.convolutions import BACKWARD, FORWARD, is_convolution, is_gradient

_MARK = "seen convolution"


@dataclass(frozen=True)
class SeenConvolutions:
    """What those on the way forward and those that find gradients took, each in the order they ran."""

    workspaces: dict[str, list[int]] = field(default_factory=dict)  # bytes
    seconds: dict[str, list[float]] = field(default_factory=dict)


def look_at_convolutions(run: Callable[[], object], device: torch.device) -> SeenConvolutions:
    """Run a step and see what each of its convolutions took."""
    mode = Convolutions(device)
    # backward of CUDA tensors would else run in a thread where nobody looks
    with (
        torch.autograd.set_multithreading_enabled(False),
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen,
    ):
        with mode:
            run()
        torch.cuda.synchronize(device)
    taken_s = {
        event.name: event.device_time_total / 1e6
        for event in seen.events() or ()
        if event.name.startswith(_MARK) and event.device_type.name == "CPU"
    }
    seconds = {
        way: [taken_s.get(_mark(way, number), 0.0) for number in range(len(found))]
        for way, found in mode.workspaces.items()
    }
    return SeenConvolutions(mode.workspaces, seconds)


class Convolutions(TorchDispatchMode):
    """Marks convolutions for the profiler, and sees what they take beyond what they are given and what they leave."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.workspaces: dict[str, list[int]] = {FORWARD: [], BACKWARD: []}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = func.overloadpacket.__name__
        if not is_convolution(kind) and not is_gradient(kind):
            return func(*args, **(kwargs or {}))
        way = BACKWARD if is_gradient(kind) else FORWARD
        before_bytes = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        with record_function(_mark(way, len(self.workspaces[way]))):
            result = func(*args, **(kwargs or {}))
        after_bytes = torch.cuda.memory_allocated(self._device)
        most_bytes = torch.cuda.max_memory_allocated(self._device)
        self.workspaces[way].append(most_bytes - max(before_bytes, after_bytes))
        return result


def _mark(way: str, number: int) -> str:
    return f"{_MARK}, {way}, {number}"
