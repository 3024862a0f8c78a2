"""Tiled against whole logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from outsize.card import Card
from outsize.infer.compare import measure_on_scene, probe_side_px, tiled_difference
from outsize.infer.ready import make_ready
from outsize.job import LimitsSection
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.models import build_model
from outsize.raster.reading import describe
from outsize.tiles.halo import Halo, Reach, derive_halo


def _case(**options: object) -> tuple[nn.Module, Halo]:
    torch.manual_seed(0)
    model = build_model("unet", num_classes=3, in_channels=2, levels=3, width=4, **options).eval()
    return model, derive_halo(trace(model, example_shape(2)))


def _inputs(side_px: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(1, 2, side_px, side_px + 3, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("upsampling", ["transposed", "nearest", "bilinear"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_tiles_with_the_derived_halo_equal_the_whole(
    upsampling: str, dtype: torch.dtype, tolerance: float
) -> None:
    model, halo = _case(upsampling=upsampling)
    side_px = probe_side_px(16, halo)
    found = tiled_difference(model.to(dtype), _inputs(side_px, dtype), 16, halo)
    assert found.interior_tiles >= 1
    assert found.largest_logit > 0.1
    assert found.relative <= tolerance


@pytest.mark.parametrize("side", range(4))
def test_a_halo_one_stride_too_short_is_seen_in_float64(side: int) -> None:
    model, halo = _case()
    need = halo.aligned
    sides = [need.rows.before_px, need.rows.after_px, need.cols.before_px, need.cols.after_px]
    sides[side] -= halo.stride_px
    short = Halo(Reach(*sides[:2]), Reach(*sides[2:]), halo.stride_px)
    inputs = _inputs(probe_side_px(16, halo), torch.float64)
    assert tiled_difference(model.double(), inputs, 16, short).relative > 1e-11


class _BadInSmall(nn.Module):
    """Gives NaN in tiles, and numbers in the whole."""

    def forward(self, images: Tensor) -> Tensor:
        return images if images.shape[-1] > 50 else images * float("nan")


def test_a_difference_that_is_no_number_is_not_passed_over() -> None:
    found = tiled_difference(_BadInSmall(), torch.ones(1, 1, 64, 64), 16, Halo(Reach(0, 0), Reach(0, 0), 16))
    assert not found.relative <= 1.0


def test_the_probed_side_leaves_a_window_off_every_border() -> None:
    for halo in (Halo(Reach(30, 30), Reach(30, 30), 8), Halo(Reach(30, 22), Reach(14, 38), 8)):
        side_px = probe_side_px(16, halo)
        inputs = torch.zeros(1, 1, side_px, side_px)
        assert tiled_difference(nn.Identity(), inputs, 16, halo).interior_tiles >= 1
    even, side_px = (
        Halo(Reach(30, 30), Reach(30, 30), 8),
        probe_side_px(16, Halo(Reach(30, 30), Reach(30, 30), 8)),
    )
    smaller = torch.zeros(1, 1, side_px - 16, side_px - 16)
    assert tiled_difference(nn.Identity(), smaller, 16, even).interior_tiles == 0


def test_a_few_tiles_are_one_of_each_kind() -> None:
    halo = Halo(Reach(30, 22), Reach(14, 38), 8)
    side_px = probe_side_px(16, halo)
    sizes: list[torch.Size] = []

    def model(images: torch.Tensor) -> torch.Tensor:
        sizes.append(images.shape)
        return images

    found = tiled_difference(model, torch.zeros(1, 1, side_px, side_px), 16, halo, few=True)
    assert len(sizes) == 1 + 9
    assert found.interior_tiles == 1
    tiled_difference(model, torch.zeros(1, 1, 16, 40), 16, halo, few=True)
    assert len(sizes) == 1 + 9 + 1 + 3


def test_where_windows_are_filled_up_so_is_the_whole() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(1, 1, 3, padding=1).double().requires_grad_(False)
    sums = nn.Sequential(
        model, nn.AvgPool2d(8, ceil_mode=True, count_include_pad=False), nn.Upsample(scale_factor=8)
    )
    inputs = torch.randn(1, 1, 45, 45, dtype=torch.float64)

    def cropped(images: torch.Tensor) -> torch.Tensor:
        return sums(images)[..., : images.shape[-2], : images.shape[-1]]

    halo = Halo(Reach(1, 1), Reach(1, 1), 8)
    for pads in (True, False):
        assert tiled_difference(cropped, inputs, 16, halo, pads=pads).relative <= 1e-15


def test_on_a_scene(scenes: Path, net: nn.Module, card: Card) -> None:
    info = describe(scenes / "test-2.tif")
    ready = make_ready(net, card, LimitsSection(tile_px=64), [info], device_name="cpu", precision="fp32")
    exact = measure_on_scene(ready, info, ready.tiling.halo, dtype=torch.float64)
    short = measure_on_scene(ready, info, Halo(Reach(0, 0), Reach(0, 0), 4), dtype=torch.float64)
    assert exact.relative <= 1e-11
    assert short.relative > 1e-4
