"""Gathers the facts that a plan is made from."""

from __future__ import annotations

import torch
from torch import nn

from outsize.measure.machine import look_at_machine
from outsize.measure.memory import window_facts
from outsize.measure.trace import example_shape, trace
from outsize.plan.facts import Facts
from outsize.tiles.halo import derive_halo

_WINDOW_PX = 256  # side of the window that is looked at


def gather_facts(
    model: nn.Module, in_channels: int, *, device: torch.device, bf16: bool, optimizer: str = "adamw"
) -> Facts:
    """Look at the machine, derive the halo of the model and count the memory of one window."""
    halo = derive_halo(trace(model, example_shape(in_channels)))
    side_px = -(-_WINDOW_PX // halo.stride_px) * halo.stride_px
    window = window_facts(
        model, in_channels, window_px=side_px, optimizer=optimizer, device=device, bf16=bf16
    )
    return Facts(look_at_machine(device), window, halo)
