"""Tells the planner how a model would run in passes, and compares them with the whole on a picture that fits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from outsize.errors import TraceError
from outsize.infer.passes.keep import Keep
from outsize.infer.passes.program import forget, program_for
from outsize.infer.passes.run import PassRun
from outsize.measure.apart import further
from outsize.measure.state import as_it_was
from outsize.measure.tensors import own_device, own_dtype
from outsize.measure.trying import does_as_traced, try_history
from outsize.tiles.halo import Obstacle
from outsize.tiles.passes import PassGraph, Walk
from outsize.units import format_size

_TOLERANCE = 1e-4  # of the largest logit, in the model's own precision
_SEED = 20240229
_CORE_PX = 16  # at least, of a trial
_REPEATS = 3


def pass_graph(
    model: nn.Module, num_channels: int, size: tuple[int, int], stride_px: int, *, trust: bool = True
) -> PassGraph | None:
    """Return how a model runs in passes over pictures of a size; None: it takes no such pictures.

    One that is not to be trusted is tried on a small picture: what it does outside of its operations, as counting its
    calls, is not in its graph. It may have been changed, so it is looked at again.
    """
    if not trust:
        forget(model)
    try:
        laid = program_for(model, num_channels, size, stride_px).laid
    except TraceError:
        return None
    if trust or laid.obstacles:
        return laid
    # passes run the graph of one moment: what answers otherwise at the next has no answer that they could equal
    if found := try_history(model, stride_px, num_channels):
        return replace(laid, obstacles=found)
    if not _agrees(model, num_channels, stride_px):
        reason = "its answer for a small picture in passes is not the whole picture's"
    elif not does_as_traced(model, (1, num_channels, *laid.size)):
        reason = "it does otherwise while torch reads its graph than when it is called"
    else:
        return laid
    return replace(laid, obstacles=(Obstacle("", "trial", reason),))


def equal_to(model: nn.Module, num_channels: int, size: tuple[int, int], stride_px: int) -> str:
    """Name what an exact answer in passes equals: that to the scene as it is, or to the scene filled up with zeros."""
    whole = program_for(model, num_channels, size, stride_px).laid.size
    if whole == size:
        return "model(scene)"
    return f"model(scene filled up with zeros to {format_size(whole)})"


def _agrees(model: nn.Module, num_channels: int, stride_px: int) -> bool:
    core_px = stride_px * -(-_CORE_PX // stride_px)
    generator = torch.Generator().manual_seed(_SEED)
    inputs = torch.randn((1, num_channels, 3 * core_px, 4 * core_px), generator=generator)
    try:
        with as_it_was(model):
            worst, largest = compare(
                model, inputs.to(own_device(model), own_dtype(model)), core_px, repeats=_REPEATS
            )
    except (TraceError, RuntimeError):  # as of a model that does not take so small a picture
        return False
    return worst <= _TOLERANCE * largest


def compare(model: nn.Module, inputs: Tensor, core_px: int, *, repeats: int = 1) -> tuple[float, float]:
    """Return the largest difference of a logit in passes from the whole's, and the largest logit.

    Every pass is cut into cores of this size, and the whole picture is run as often as is asked, passes in between.
    """
    model.eval()
    size = inputs.shape[-2], inputs.shape[-1]
    program = program_for(model, inputs.shape[1], size, 1)
    laid = program.laid
    if laid.obstacles:
        return float("inf"), 0.0
    cores = [work.core for work in Walk(laid, laid.num_passes - 1, core_px).works()]
    worst = largest = 0.0
    for _ in range(repeats):
        with torch.inference_mode():
            whole = model(inputs)
            largest = max(largest, float(whole.abs().max()))
        run = PassRun(
            program,
            lambda window: inputs[(..., *window.slices)],
            Keep(None),
            inputs.device,
            cores_px=[core_px] * laid.num_passes,
        )
        for core, logits in run.last(cores):
            worst = further(worst, float((logits - whole[(..., *core.slices)]).abs().max()))
    return worst, largest
