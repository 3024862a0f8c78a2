"""What `train` does about host memory: weights that stay there, room for what a plan moves there, and what it moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outsize.job import LimitsSection
from outsize.plan.plan import Plan
from outsize.progress import Reporter
from outsize.units import format_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn

    from outsize.strategies.swap import Meter


def place(model: nn.Module, plan: Plan, device: torch.device, *, bf16: bool) -> None:
    """Move a model to the device, or leave its weights on the host where the plan says so."""
    if plan.offload is None:
        from outsize.card import to_device

        to_device(model, device)
    else:
        from outsize.strategies.offload import offload

        offload(model, plan.offload, device, bf16=bf16)


def host_has_room(plan: Plan, limits: LimitsSection, num_sharing: int = 1) -> bool:
    """Say whether host memory takes what a plan of an earlier day moves there."""
    from outsize.measure.machine import host_room_bytes

    return plan.hosted_bytes <= host_room_bytes(limits.host_memory, num_sharing)


def room_for_pictures(plan: Plan, limits: LimitsSection, num_sharing: int = 1) -> int:
    """Return what decoded pictures may take of host memory: half of what a plan leaves of it."""
    from outsize.measure.machine import host_room_bytes

    return max(0, host_room_bytes(limits.host_memory, num_sharing) - plan.hosted_bytes) // 2


def what_moved(meter: Meter, reporter: Reporter) -> dict[str, Any]:
    """Say what an epoch moved to host memory and back, and return it for the log; nothing where nothing was."""
    counted = meter.read()
    if counted is None or not counted.num_forwards:
        return {}
    moved_bytes = counted.out_bytes / counted.num_forwards
    parts = [f"{format_bytes(moved_bytes)} moved to host memory in each forward"]
    if counted.hidden_share is not None:
        parts.append(f"{counted.hidden_share:.0%} of the copies under kernels")
    if counted.num_full:
        parts.append(f"{counted.num_full} tensors stayed, for it was full")
    reporter.say("moved", ", ".join(parts), **counted.as_dict())
    return {"moved": counted.as_dict()}
