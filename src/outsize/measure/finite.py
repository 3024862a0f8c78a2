"""Finds numbers that are none: NaN, and infinity where there may be none, in weights and states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

_STATISTICS = ("running_mean", "running_var")


def bad_weight(model: nn.Module) -> str | None:
    """Name the first weight of a model that holds NaN or infinity.

    Of buffers only statistics may not be infinite: others, such as masks of attention, may be so on purpose.
    """
    free = {name for name, _ in model.named_buffers() if not name.endswith(_STATISTICS)}
    return first_bad(model.state_dict(), may_be_infinite=free)


def first_bad(tensors: Mapping[str, Tensor], may_be_infinite: Iterable[str] = ()) -> str | None:
    """Name the first of these tensors that holds NaN, or infinity where it may not."""
    free = frozenset(may_be_infinite)
    named = [
        (name, value)
        for name, value in ((name, _held_here(each)) for name, each in tensors.items())
        if (value.is_floating_point() or value.is_complex()) and value.numel()
    ]
    for devices_tensors in _by_device(named).values():
        found = torch.stack([_sound(value.detach(), name in free) for name, value in devices_tensors])
        for (name, _), sound in zip(devices_tensors, found.tolist(), strict=True):
            if not sound:
                return name
    return None


def _held_here(value: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: FSDP's weights cannot be read as a whole without copies."""
    to_local = getattr(value, "to_local", None)
    return value if to_local is None else cast(Tensor, to_local())


def _by_device(named: Iterable[tuple[str, Tensor]]) -> dict[torch.device, list[tuple[str, Tensor]]]:
    groups: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, value in named:
        groups.setdefault(value.device, []).append((name, value))
    return groups


def _sound(value: Tensor, may_be_infinite: bool) -> Tensor:
    """Return whether a tensor is sound, on its device; its least and largest number tell without a copy of it."""
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    least, largest = value.aminmax()
    return ~(least.isnan() | largest.isnan()) if may_be_infinite else least.isfinite() & largest.isfinite()
