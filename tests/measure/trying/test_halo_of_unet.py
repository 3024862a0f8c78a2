"""The halo of the U-Net: the known table, proved sufficient and tight, and tiles equal to the whole picture."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from outsize.measure.graphs.exporting import example_shape, trace
from outsize.measure.trying.probe import probe_halo
from outsize.models import build_model
from outsize.models.unet import UPSAMPLINGS
from outsize.tiles.grid import cover
from outsize.tiles.halo import Halo, Reach, derive_halo


def unet(**options: object) -> nn.Module:
    torch.manual_seed(1)
    model = build_model("unet", num_classes=3, in_channels=4, **{"width": 2, **options}).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that differ from the start values
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model


def halo_of(model: nn.Module) -> Halo:
    return derive_halo(trace(model, example_shape(4)))


# levels, convs: need and halo with transposed convolutions or nearest; halo with bilinear
TABLE = {
    (3, 2): (22, 24, 28),
    (4, 2): (46, 48, 56),
    (5, 2): (94, 96, 112),
    (6, 2): (190, 192, 224),
    (5, 1): (47, 48, 64),
    (5, 3): (141, 144, 160),
}


@pytest.mark.parametrize(
    ("levels", "convs"),
    [pytest.param(*each, marks=pytest.mark.long if each in ((6, 2), (5, 3)) else ()) for each in TABLE],
)
def test_table(levels: int, convs: int) -> None:
    need_px, aligned_px, bilinear_px = TABLE[levels, convs]
    for upsampling in UPSAMPLINGS:
        halo = halo_of(unet(levels=levels, convs=convs, norm="none", upsampling=upsampling))
        assert halo.exact
        assert halo.stride_px == 2 ** (levels - 1)
        if upsampling == "bilinear":
            assert halo.aligned.rows == halo.aligned.cols == Reach(bilinear_px, bilinear_px)
        else:
            assert halo.rows == halo.cols == Reach(need_px, need_px)
            assert halo.aligned.rows == halo.aligned.cols == Reach(aligned_px, aligned_px)


@pytest.mark.parametrize(("norm", "upsampling"), list(product(("none", "batch"), UPSAMPLINGS)))
def test_sufficient_and_tight(norm: str, upsampling: str) -> None:
    levels = 5 if norm == "batch" else 3
    model = unet(levels=levels, norm=norm, upsampling=upsampling)
    halo = halo_of(model)
    needs_px = {5: (94, 110), 3: (22, 26)}
    need_px = needs_px[levels][upsampling == "bilinear"]
    assert halo.rows == halo.cols == Reach(need_px, need_px)
    result = probe_halo(model, halo)
    assert result.sufficient
    assert result.tight


def test_probe_does_not_depend_on_the_core() -> None:
    model = unet(levels=3)
    result = probe_halo(model, halo_of(model), core_px=20)
    assert result.sufficient
    assert result.tight


@pytest.mark.parametrize("side", range(4))
def test_probe_catches_one_pixel_too_few_and_one_too_many(side: int) -> None:
    model = unet(levels=4)
    for change_px in (-1, 1):
        sides = [46, 46, 46, 46]
        sides[side] += change_px
        result = probe_halo(model, Halo(Reach(*sides[:2]), Reach(*sides[2:]), 8))
        assert result.sufficient is (change_px > 0)
        tight = (result.tight_above, result.tight_below, result.tight_left, result.tight_right)
        if change_px > 0:
            assert [not each for each in tight] == [each == side for each in range(4)]


def tiled(model: nn.Module, images: Tensor, halo: Halo, core_px: int) -> tuple[Tensor, int]:
    """Return the logits put together from tiles, and how many windows touched no border."""
    height, width = images.shape[-2:]
    padded = nn.functional.pad(images, (0, -width % halo.stride_px, 0, -height % halo.stride_px))
    logits = torch.full((1, 3, height, width), float("nan"), dtype=images.dtype)
    num_inner = 0
    for tile in cover(height, width, core_px, halo):
        part = model(padded[(..., *tile.read.slices)])
        logits[(..., *tile.core.slices)] = part[(..., *tile.core.within(tile.read).slices)]
        read = tile.read
        num_inner += read.row > 0 and read.col > 0 and read.row_end < height and read.col_end < width
    return logits, num_inner


@pytest.mark.parametrize(
    ("levels", "norm", "upsampling"),
    [(4, *each) for each in product(("none", "batch"), UPSAMPLINGS)]
    + [pytest.param(5, "batch", "transposed", marks=pytest.mark.long)],
)
def test_tiles_equal_the_whole(levels: int, norm: str, upsampling: str) -> None:
    model = unet(levels=levels, norm=norm, upsampling=upsampling)
    halo = halo_of(model)
    core_px = 8 * halo.stride_px
    images = torch.randn(1, 4, 3 * core_px - 3, 3 * core_px - 2)  # no multiples of the stride
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-11)):
        model, images = model.to(dtype), images.to(dtype)
        with torch.inference_mode():
            whole = model(images)
            parts, num_inner = tiled(model, images, halo, core_px)
        assert num_inner >= 1
        assert float((parts - whole).abs().max() / whole.abs().max()) <= tolerance


def test_tiles_out_of_phase_differ() -> None:
    """The comparison above can fail: without alignment to the stride pooling sees other pairs."""
    model = unet(levels=3, norm="none")
    images = torch.randn(1, 4, 256, 256)
    with torch.inference_mode():
        whole = model(images)
        parts, _ = tiled(model, images, Halo(Reach(22, 22), Reach(22, 22), 1), 66)
    assert float((parts - whole).abs().max() / whole.abs().max()) > 1e-3


def test_group_norm_is_named() -> None:
    halo = halo_of(unet(levels=2, norm="group"))
    assert not halo.exact
    assert [(each.module, each.kind) for each in halo.obstacles][:2] == [
        ("encoder.0.1", "group_norm"),
        ("encoder.0.4", "group_norm"),
    ]
    assert "rows and columns" in str(halo.obstacles[0])
    assert halo.rows == halo_of(unet(levels=2, norm="batch")).rows
    assert not probe_halo(unet(levels=2, norm="group"), halo).sufficient
