"""What steps really took of a GPU's memory, beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.units import format_bytes

if TYPE_CHECKING:
    import torch


def memory_taken(
    device: torch.device, plan_now: Callable[[], Plan], reporter: Reporter
) -> Callable[[], dict[str, Any]]:
    """Return what is called before validations: it tells the peak of the steps before the first, for the log.

    Afterwards nobody could tell the memory of steps from that of validation. Nothing is reported on a CPU.
    """
    reported, first = device.type != "cuda", plan_now()

    def tell() -> dict[str, Any]:
        nonlocal reported
        if reported:
            return {}
        reported = True
        import torch

        taken_bytes = torch.cuda.max_memory_allocated(device)
        plan = plan_now()
        found = {"steps_bytes": taken_bytes, "predicted_bytes": plan.peak_bytes, "replanned": plan != first}
        text = f"steps took at most {format_bytes(taken_bytes)} of the GPU's memory"
        # the peak is also that of steps before, one of which may have failed
        after = " for the plan that took over" if plan != first else ""
        reporter.say("memory", f"{text}, {format_bytes(plan.peak_bytes)} predicted{after}", **found)
        return {"memory": found}

    return tell
