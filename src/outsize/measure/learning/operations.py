"""Sees what each operation of a real step on a GPU takes: time of its kernels, memory that convolutions give back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.plan.seen import group_of, is_convolution
from outsize.plan.times import class_of

_MARK = "seen: "


@dataclass(frozen=True)
class SeenOperations:
    """What operations took, in the order they ran, by group (`plan.seen.group_of`)."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    workspaces: dict[str, list[int]] = field(default_factory=dict)  # bytes; of convolutions

    def by_class(self) -> dict[str, float]:
        """Return the seconds of each class of operation."""
        found: dict[str, float] = {}
        for group, taken_s in self.seconds.items():
            kind, _, back = group.partition(", ")
            name = class_of(kind, backward=bool(back))
            found[name] = found.get(name, 0.0) + sum(taken_s)
        return found


def look_at_operations(run: Callable[[], object], device: torch.device) -> SeenOperations:
    """Run a step and see what each of its operations took."""
    mode = Operations(device)
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
        group: [taken_s.get(_mark(group, number), 0.0) for number in range(num)]
        for group, num in mode.counts.items()
    }
    return SeenOperations(seconds, mode.workspaces)


class Operations(TorchDispatchMode):
    """Marks operations for the profiler; sees what convolutions take beyond what they are given and what they leave."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.counts: Counter[str] = Counter()
        self.workspaces: dict[str, list[int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = func.overloadpacket.__name__
        group = group_of(kind, backward=torch._C._current_graph_task_id() != -1)
        mark = _mark(group, self.counts[group])
        self.counts[group] += 1
        if not is_convolution(kind):
            with record_function(mark):
                return func(*args, **(kwargs or {}))
        before_bytes = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        with record_function(mark):
            result = func(*args, **(kwargs or {}))
        after_bytes = torch.cuda.memory_allocated(self._device)
        most_bytes = torch.cuda.max_memory_allocated(self._device)
        taken_bytes = most_bytes - max(before_bytes, after_bytes)
        self.workspaces.setdefault(group, []).append(taken_bytes)
        return result


def _mark(group: str, number: int) -> str:
    return f"{_MARK}{group}, {number}"
