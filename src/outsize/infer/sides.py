"""What becomes of a scene whose sides are no multiple of the model's stride.

    filled up   |=====================|00|    zeros after normalisation; all windows have one shape
    as it is    |=====================|       the last windows end where the scene does

A scene in one window is given as it is where the model takes such a size. One in several is where windows that end with
the scene answer as the whole does: true of convolution and pooling, whose last outputs see the same padding, and not of
resizing to the size of the input, which lies differently in each window. That is tried, on a small picture whose sides
leave the same rest. Where it is not so, zeros fill the scene up, and what comes out is the model's answer to that.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from outsize.errors import OutsizeError, TraceError
from outsize.infer.stream import Settings, answer
from outsize.measure.state import as_it_was
from outsize.measure.tracing import answer_on_shapes
from outsize.measure.trying import does_the_same
from outsize.plan.plan import Tiling
from outsize.tiles.window import Tile, Window
from outsize.units import format_size

_TOLERANCE = 1e-4  # of the largest logit, in float32; an edge that is seen otherwise differs by far more
_SEED = 20240229


def fills_up(model: nn.Module) -> bool:
    """Whether a model says that it fills pictures up with zeros and crops its answer: then both ways are one."""
    return bool(getattr(model, "fills_up", False))


def takes(model: nn.Module, num_inputs: int, size: tuple[int, int], *, channels_last: bool = True) -> bool:
    """Say whether a model answers to pictures of a size with maps of that size, on shapes alone."""
    try:
        parts = answer_on_shapes(model, (1, num_inputs, *size), channels_last=channels_last)
    except TraceError:
        return False
    return len(parts) == 1 and parts[0].shape[-2:] == size


def fitted(
    tiling: Tiling,
    model: nn.Module,
    num_inputs: int,
    size: tuple[int, int],
    settings: Settings,
    *,
    trust: bool = True,
) -> Tiling:
    """Return the tiling for a scene of a size that the model takes: windows end with it where that is exact.

    One that is not to be trusted must do the same for all of them as for the scene, not only for a small picture.
    """
    if not any(each % tiling.stride_px for each in size) or fills_up(model):
        return tiling
    ends = replace(tiling, pads=False)
    reads = [tile.read for tile in ends.cover(*size)]
    if all(read == Window(0, 0, *size) for read in reads):
        return ends
    if not _ends_alike(tiling, model, num_inputs, size, settings):
        return tiling
    groups = _of_equal_rest([(read.height, read.width) for read in reads], size, tiling.stride_px)
    shapes = [[(settings.batch, num_inputs, *each) for each in group] for group in groups]
    return ends if trust or all(does_the_same(model, each) for each in shapes) else tiling


_Size = tuple[int, int]


def _of_equal_rest(sizes: Sequence[_Size], whole: _Size, stride_px: int) -> list[list[_Size]]:
    """Return sizes of windows by the rest that the stride leaves, each group with the scene cut to leave the same.

    A model that pads pictures to a multiple of its stride pads by the rest, windows as a scene of that rest.
    """
    groups: dict[_Size, dict[_Size, None]] = {}
    for height, width in sizes:
        rest = height % stride_px, width % stride_px
        like = whole[0] - whole[0] % stride_px + rest[0], whole[1] - whole[1] % stride_px + rest[1]
        groups.setdefault(rest, {like: None})[height, width] = None
    return [list(group) for group in groups.values()]


def _ends_alike(
    tiling: Tiling, model: nn.Module, num_inputs: int, size: tuple[int, int], settings: Settings
) -> bool:
    """Compare two tiles of a small picture, whose sides leave the same rest, with the whole: at either end of it."""
    (near_rows, far_rows), (near_cols, far_cols) = (_ends(tiling, size[axis], axis) for axis in (0, 1))
    tiles = [_tile(near_rows, near_cols), _tile(far_rows, far_cols)]
    sides = tiles[1].core.row_end, tiles[1].core.col_end
    generator = torch.Generator().manual_seed(_SEED)
    picture = torch.randn(1, num_inputs, *sides, generator=generator).to(settings.device)
    judge, own = model, replace(settings, bf16=False)
    if settings.dtype in (torch.bfloat16, torch.float16):  # too coarse to tell an edge from rounding
        judge, own = copy.deepcopy(model).float(), replace(own, dtype=torch.float32)
    with (
        torch.inference_mode(),
        as_it_was(model),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False),
    ):
        try:
            whole = answer(judge, picture, own)
            least = _TOLERANCE * whole.abs().max()
            for tile in tiles:
                part = answer(judge, picture[(..., *tile.read.slices)], own)
                core = part[(..., *tile.core.within(tile.read).slices)]
                expected = whole[(..., *tile.core.slices)]
                if core.shape != expected.shape or not bool(((core - expected).abs() <= least).all()):
                    return False
        except OutsizeError:  # it takes no window of such a size
            return False
    return True


_Side = tuple[int, int, int, int]  # start and end of the window, start and end of the core


def _ends(tiling: Tiling, length_px: int, axis: int) -> tuple[_Side, _Side]:
    """Return the shortest tiles at both ends of a picture that is longer than either of them by a stride."""
    stride_px, before_px, after_px = tiling.stride_px, tiling.halo_before_px[axis], tiling.halo_after_px[axis]
    rest_px = length_px % stride_px
    side_px = max(before_px, after_px) + 2 * stride_px + rest_px
    last_px = side_px - rest_px - stride_px
    return (0, stride_px + after_px, 0, stride_px), (last_px - before_px, side_px, last_px, side_px)


def _tile(rows: _Side, cols: _Side) -> Tile:
    read, core = (
        Window(rows[each], cols[each], rows[each + 1] - rows[each], cols[each + 1] - cols[each])
        for each in (0, 2)
    )
    return Tile(0, core, read)


def compared_with(tiling: Tiling, model: nn.Module, size: tuple[int, int]) -> str:
    """Name what an exact answer equals: that to the scene as it is, or to the scene filled up with zeros."""
    height, width = (each + -each % tiling.stride_px for each in size)
    if not tiling.pads or (height, width) == size or fills_up(model):
        return "model(scene)"
    return f"model(scene filled up with zeros to {format_size((height, width))})"
