"""What steps really took of a GPU's memory, beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.units import format_bytes

if TYPE_CHECKING:
    import torch


def memory_taken(device: torch.device, plan: Plan, reporter: Reporter) -> Callable[[], dict[str, Any]]:
    """Return what is called before validations: it tells the peak of the steps before the first, for the log.

    Afterwards nobody could tell the memory of steps from that of validation. Nothing is told on a CPU.
    """
    told = device.type != "cuda"

    def tell() -> dict[str, Any]:
        nonlocal told
        if told:
            return {}
        told = True
        import torch

        taken_bytes = torch.cuda.max_memory_allocated(device)
        found = {"steps_bytes": taken_bytes, "predicted_bytes": plan.peak_bytes}
        text = f"steps took at most {format_bytes(taken_bytes)} of the GPU's memory"
        reporter.say("memory", f"{text}, {format_bytes(plan.peak_bytes)} predicted", **found)
        return {"memory": found}

    return tell
