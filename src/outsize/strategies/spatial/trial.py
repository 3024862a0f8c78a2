"""Tries whether a model gives parts of a picture the answer of the whole: in double precision, on a small picture."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.measure.tensors import tensors_in
from outsize.plan.plan import Spatial
from outsize.ranks import World
from outsize.strategies.spatial.layers import Spread
from outsize.strategies.spatial.shard import shard_of

_NEAR = 1e-9  # of the largest number of an answer


def refuse_apart(
    model: nn.Module,
    spatial: Spatial,
    world: World,
    num_channels: int,
) -> None:
    """Refuse a model whose answer in parts is another one; every rank runs all of a small picture beside its part.

    Random weights of a network hide a border that is missing deep inside, but not from double precision.
    """
    small = _small(spatial)
    shard = shard_of(world, small)
    tried = copy.deepcopy(model).double().eval()
    device = next(model.parameters()).device
    drawn = torch.Generator().manual_seed(0)
    whole = torch.rand(1, num_channels, *small.picture_px, dtype=torch.float64, generator=drawn).to(device)
    own = whole[:, :, *shard.tile.core.slices].contiguous()
    with torch.no_grad():
        answers = tensors_in(tried(whole))
        with Spread(shard):
            parts = tensors_in(tried(own))
    apart = max(
        _apart(part, answer, shard.tile.core.slices, small.picture_px)
        for part, answer in zip(parts, answers, strict=True)
    )
    worst = max(world.gather(apart))
    if worst > _NEAR:
        found = f"answers that differ by {worst:.1g} of the largest number"
        remedy = "use --spread recompute or whole, and report this model"
        raise ModelError(
            explain("a picture on several ranks is not the whole picture", found, "the same", remedy)
        )


def _small(spatial: Spatial) -> Spatial:
    """Return the same grid on a picture that is as small as may be: its parts hold what their neighbours look at."""
    least = (
        min(tile.core.height for tile in spatial.tiles()),
        min(tile.core.width for tile in spatial.tiles()),
    )
    sides = [
        full if num == 1 else num * part
        for num, part, full in zip(spatial.grid, least, spatial.picture_px, strict=True)
    ]
    most = 512 // spatial.stride_px * spatial.stride_px or spatial.stride_px
    shrunk = [
        min(side, most if num == 1 else max(num * spatial.stride_px, num * most // 2))
        for side, num in zip(sides, spatial.grid, strict=True)
    ]
    return Spatial(spatial.grid, (shrunk[0], shrunk[1]), spatial.stride_px)


def _apart(part: Tensor, whole: Tensor, window: tuple[slice, slice], picture_px: tuple[int, int]) -> float:
    """Return how far a part is from its place in the whole, which may be of lower resolution."""
    if whole.dim() != 4:
        return 0.0
    times = [side / own for side, own in zip(picture_px, whole.shape[2:], strict=True)]
    rows, cols = (
        slice(round(cut.start / by), round(cut.start / by) + size)
        for cut, by, size in zip(window, times, part.shape[2:], strict=True)
    )
    expected = whole[..., rows, cols]
    if expected.shape != part.shape:
        return float("inf")
    return float((part - expected).abs().max() / whole.abs().max().clamp(min=1e-300))
