"""Proves a halo by poison: NaN beyond it must not reach the core, and NaN one pixel nearer must."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outsize.errors import ModelError, explain
from outsize.tiles.halo import Halo
from outsize.tiles.window import Window

_SEED = 20240229


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether the halo is enough, and on which sides it could not be one pixel shorter."""

    sufficient: bool
    tight_above: bool
    tight_below: bool
    tight_left: bool
    tight_right: bool

    @property
    def tight(self) -> bool:
        """Whether no side could be one pixel shorter."""
        return self.tight_above and self.tight_below and self.tight_left and self.tight_right


def probe_halo(
    model: nn.Module,
    halo: Halo,
    *,
    core_px: int | None = None,
    in_channels: int | None = None,
    device: str | torch.device = "cpu",
) -> ProbeResult:
    """Probe a halo on a copy of the model in double precision and evaluation mode; the core is one stride by default.

        . . . . . . . . . . . . .   NaN
        . +-------------------+ .
        . |  need   +------+  | .   numbers; pulled in by one pixel on one side at a time
        . |         | core |  | .
        . |         +------+  | .   finite if and only if nothing outside of the need is looked at
        . +-------------------+ .
        . . . . . . . . . . . . .

    Comparing numbers is no proof: what leaks in from far away is often smaller than rounding. NaN
    is not: it survives zero weights, ReLU and pooling.
    """
    size_px = core_px if core_px is not None else halo.stride_px
    if size_px < 1 or size_px % halo.stride_px:
        needed = f"a multiple of the stride, {halo.stride_px} px"
        raise ModelError(
            explain("the halo cannot be probed on this core", f"{size_px} px", needed, "round it up")
        )
    read, stride_px = halo.aligned, halo.stride_px
    # One stride of NaN all around, so that the read window touches no border, whose padding would be finite.
    row, col = read.rows.before_px + stride_px, read.cols.before_px + stride_px
    core = Window(row, col, size_px, size_px)
    height = core.row_end + read.rows.after_px + stride_px
    width = core.col_end + read.cols.after_px + stride_px
    above, below = core.row - halo.rows.before_px, core.row_end + halo.rows.after_px
    left, right = core.col - halo.cols.before_px, core.col_end + halo.cols.after_px
    bands = in_channels if in_channels is not None else _num_bands(model)
    generator = torch.Generator().manual_seed(_SEED)
    picture = torch.randn(1, bands, height, width, dtype=torch.float64, generator=generator).to(device)
    judge = copy.deepcopy(model).to(device=device, dtype=torch.float64).eval()

    def clean(above: int, below: int, left: int, right: int) -> bool:
        poisoned = torch.full_like(picture, float("nan"))
        poisoned[..., above:below, left:right] = picture[..., above:below, left:right]
        return _core_is_finite(judge, poisoned, core)

    return ProbeResult(
        sufficient=clean(above, below, left, right),
        tight_above=not clean(above + 1, below, left, right),
        tight_below=not clean(above, below - 1, left, right),
        tight_left=not clean(above, below, left + 1, right),
        tight_right=not clean(above, below, left, right - 1),
    )


def _core_is_finite(model: nn.Module, picture: Tensor, core: Window) -> bool:
    # cuDNN may convolve by Fourier or Winograd transforms, which mix pixels that the model does not.
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=False):
        output = model(picture)
    rows, cols = core.slices
    return all(bool(each[..., rows, cols].isfinite().all()) for each in _tensors(output))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)


def _num_bands(model: nn.Module) -> int:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            return module.in_channels
    needed = "a model with a convolution, or the number of bands"
    raise ModelError(explain("bands of the model's input not known", "no Conv2d", needed, "give in_channels"))
