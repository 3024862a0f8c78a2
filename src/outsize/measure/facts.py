"""Gathers the facts that a plan is made from."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from outsize.data.inputs import reach_px
from outsize.measure.tensors import own_dtype
from outsize.measure.tracing import trace_step
from outsize.measure.trying import derive
from outsize.models import input_maps, num_inputs
from outsize.plan.cost import StepCost
from outsize.plan.facts import Facts, Machine, WindowFacts
from outsize.plan.times import OpSeconds, Rates, host_calls
from outsize.tiles.halo import Halo

_SIDES_PX = (512, 1024)  # of the windows that are looked at: two tell what grows with their pixels


def halo_of(model: nn.Module, num_bands: int, largest_px: tuple[int, int] | None = None) -> Halo:
    """Derive how far a model looks around each pixel, and the maps behind the bands of its input besides."""
    halo = derive(model, num_inputs(model, num_bands), largest_px)
    return halo.widened(reach_px(input_maps(model)))


def _window(model: nn.Module, in_channels: int, side_px: int, channels_last: bool) -> Any:
    """Return a window as shapes go into a step: its shape alone lies channels last there."""
    shape = (1, in_channels, side_px, side_px)
    return shape if channels_last else torch.empty(shape, dtype=own_dtype(model), device="meta")


def gather_facts(
    model: nn.Module,
    num_bands: int,
    machine: Machine,
    *,
    bf16: bool,
    rates: Rates | None = None,
    op_s: OpSeconds | None = None,
    halo: Halo | None = None,
    channels_last: bool = True,
) -> Facts:
    """Count the memory and the time of windows on the machine, and derive the halo of the model unless it is given."""
    halo = halo or halo_of(model, num_bands)
    in_channels = num_inputs(model, num_bands)
    kind: Literal["cpu", "cuda"] = "cpu" if machine.device == "cpu" else "cuda"
    sides_px = [-(-side_px // halo.stride_px) * halo.stride_px for side_px in _SIDES_PX]
    sides_px[1] = max(sides_px[1], sides_px[0] + halo.stride_px)  # a stride may be longer than both
    small, large = (
        trace_step(
            model, _window(model, in_channels, side_px, channels_last), loss=None, bf16=bf16, device=kind
        )
        for side_px in sides_px
    )
    weights_bytes = sum(each.size_bytes for each in large.storages if each.role == "weight" and each.born < 0)
    num_px = sides_px[1] ** 2
    more_px = num_px - sides_px[0] ** 2
    peaks = [StepCost(each).peak_bytes() for each in (small, large)]
    bytes_per_px = (peaks[1] - peaks[0]) / more_px
    fixed_s = s_per_px = None
    host_s = 0.0
    if op_s is not None:
        times = [sum(map(op_s, each.ops)) for each in (small, large)]
        s_per_px = (times[1] - times[0]) / more_px
        fixed_s = max(0.0, times[1] - s_per_px * num_px)
        host_s = sum(map(host_calls, large.ops)) * (rates.host_op_s if rates else 0.0)
        if kind == "cpu":  # one after the other, not at the same time
            fixed_s, host_s = fixed_s + host_s, 0.0
    window = WindowFacts(
        window_px=sides_px[1],
        weights_bytes=weights_bytes,
        fixed_bytes=max(0, int(peaks[1] - weights_bytes - bytes_per_px * num_px)),
        predict_bytes_per_px=bytes_per_px,
        predict_flops_per_px=sum(op.flops for op in large.ops) / num_px,
        fixed_s=fixed_s,
        predict_s_per_px=s_per_px,
        host_s=host_s,
    )
    return Facts(machine, window, halo, rates)
