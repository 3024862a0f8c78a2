"""Tiled against whole: how far logits computed tile by tile are from those of the whole picture."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from outsize.infer.passes import compare
from outsize.infer.prepare import make_prepare
from outsize.infer.ready import Ready
from outsize.infer.sides import fitted
from outsize.infer.stream import answer
from outsize.measure.apart import further
from outsize.plan.plan import Tiling
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tiles.grid import cover
from outsize.tiles.halo import Halo
from outsize.tiles.window import Tile, middle_window

_CORES = 4  # along a side of a picture on which passes are compared


@dataclass(frozen=True)
class Difference:
    """The largest difference of a logit, and the largest logit it is to be seen against."""

    largest: float
    largest_logit: float
    interior_tiles: int  # windows that touch no border of the picture: only they test the halo on every side

    @property
    def relative(self) -> float:
        """Largest difference as a share of the largest logit."""
        return self.largest / self.largest_logit if self.largest_logit else self.largest


@torch.inference_mode()
def tiled_difference(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    core_px: int,
    halo: Halo,
    *,
    pads: bool = True,
    few: bool = False,
) -> Difference:
    """Run normalised inputs (1, band, row, column) whole and in tiles, in their own precision, TF32 off.

    Where windows are filled up with zeros to the stride (`pads`), so is the whole. A `few` tiles are one of each
    kind: at the corners, in the middle of the sides, and inside.
    """
    height, width = inputs.shape[-2:]
    stride_px = halo.stride_px if pads else 1
    filled = _padded(inputs, height + -height % stride_px, width + -width % stride_px)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        whole = model(filled)[..., :height, :width]
        largest, interior = 0.0, 0
        tiles = cover(height, width, core_px, halo, pads=pads)
        for tile in _of_each_kind(tiles, height, width) if few else tiles:
            rows, cols = tile.read.slices
            window = _padded(inputs[..., rows, cols], tile.read.height, tile.read.width)
            core_rows, core_cols = tile.core.within(tile.read).slices
            core = model(window)[..., core_rows, core_cols]
            whole_core = whole[(..., *tile.core.slices)]
            largest = further(largest, float((core - whole_core).abs().max()))
            inside = tile.read.row > 0 and tile.read.col > 0
            interior += inside and tile.read.row_end < height and tile.read.col_end < width
    return Difference(largest, float(whole.abs().max()), interior)


def _of_each_kind(tiles: Sequence[Tile], height: int, width: int) -> list[Tile]:
    rows = {tile.core.row: tile.read.row > 0 and tile.read.row_end < height for tile in tiles}
    cols = {tile.core.col: tile.read.col > 0 and tile.read.col_end < width for tile in tiles}
    taken = [_first_middle_last(starts) for starts in (rows, cols)]
    return [tile for tile in tiles if tile.core.row in taken[0] and tile.core.col in taken[1]]


def _first_middle_last(starts: dict[int, bool]) -> set[int]:
    """Return three of the starts of cores; the middle one's window touches no border, if there is such."""
    inner = [start for start, is_inner in starts.items() if is_inner] or list(starts)
    return {min(starts), inner[len(inner) // 2], max(starts)}


def probe_side_px(core_px: int, halo: Halo) -> int:
    """Return the side of a picture just large enough that one window touches no border."""
    need = halo.aligned
    before_px = max(need.rows.before_px, need.cols.before_px)
    after_px = max(need.rows.after_px, need.cols.after_px)
    cores_before = -(-(before_px + halo.stride_px) // core_px)
    cores_after = -(-(after_px + halo.stride_px) // core_px)
    return core_px * (cores_before + 1 + cores_after)


def _padded(window: Tensor, height: int, width: int) -> Tensor:
    missing = (0, width - window.shape[-1], 0, height - window.shape[-2])
    return nn.functional.pad(window, missing) if any(missing) else window


def _in_passes(model: nn.Module, inputs: Tensor, core_px: int) -> Difference:
    """Run normalised inputs whole and in passes, every one of them over cores of that size."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        largest, largest_logit = compare(model, inputs, core_px)
    rows, cols = (max(0, -(-length // core_px) - 2) for length in inputs.shape[-2:])
    return Difference(largest, largest_logit, rows * cols)


def measure_on_scene(
    ready: Ready, info: SceneInfo, halo: Halo, *, dtype: torch.dtype = torch.float32
) -> Difference:
    """Compare tiles under a halo with the whole, on the middle of a scene, small enough to fit at once.

    Where the plan has passes, they are what is compared, cut into four by four cores.
    """
    # The middle is large enough for the halo the model needs, also where the one compared is shorter.
    core_px = max(ready.halo.stride_px, 64 // ready.halo.stride_px * ready.halo.stride_px)
    in_passes = ready.plan.passes is not None
    side_px = _CORES * core_px if in_passes else probe_side_px(core_px, ready.halo)
    window = middle_window(info.height, info.width, side_px)
    prepare = make_prepare(ready.card.bands, info, ready.card.statistics, ready.card.maps)
    with SceneReader(info) as reader:
        raster = reader.read(window)
    device = ready.settings.device
    images, valid = (torch.from_numpy(array)[None].to(device) for array in (raster.pixels, raster.valid))
    model = copy.deepcopy(ready.model).to(dtype)
    inputs = prepare(images, valid).to(dtype)
    settings = replace(ready.settings, dtype=dtype, bf16=False)
    if in_passes:
        return _in_passes(model, inputs, core_px)
    tiling, size = Tiling.of(core_px, halo), (window.height, window.width)
    as_it_is = ready.plan.exact and ready.any_size
    pads = not as_it_is or fitted(tiling, model, inputs.shape[1], size, settings).pads
    return tiled_difference(
        lambda each: answer(model, each, settings), inputs, core_px, halo, pads=pads, few=ready.plan.exact
    )
