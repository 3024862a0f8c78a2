"""Tiles in training: loss terms and gradients are those of the whole image, memory is that of one tile."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.errors import PlanError
from outsize.losses import Weights
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.measure.memory import LiveBytes
from outsize.models import build_model
from outsize.plan.plan import Plan, Tiling
from outsize.strategies.compose import LossTerms, compose
from outsize.strategies.steps.tiles import take_tile
from outsize.tasks.segment.terms import count_terms, make_loss_terms
from outsize.tiles.grid import cover
from outsize.tiles.halo import Halo, derive_halo

WHOLE = Plan(purpose="train", batch=1, limit_bytes=1, peak_bytes=1, exact=True, why=())
WEIGHTS = (0.3, 1.0, 5.0)
UPSAMPLINGS = ("transposed", "nearest", "bilinear")


def _unet(upsampling: str = "transposed") -> nn.Module:
    torch.manual_seed(5)
    options = {"levels": 3, "width": 2, "norm": "none", "upsampling": upsampling}
    return build_model("unet", num_classes=3, in_channels=2, **options).double()


@lru_cache
def _halo(upsampling: str = "transposed") -> Halo:
    return derive_halo(trace(_unet(upsampling), example_shape(2))).aligned


def _tiling(core_px: int, halo: Halo) -> Tiling:
    before, after = ((halo.rows.before_px, halo.cols.before_px), (halo.rows.after_px, halo.cols.after_px))
    return Tiling(core_px=core_px, halo_before_px=before, halo_after_px=after, stride_px=halo.stride_px)


def _batch(shape: tuple[int, int, int], loss: str = "cross_entropy", weights: Weights = None) -> Batch:
    num_samples, height, width = shape
    generator = torch.Generator().manual_seed(height * width)
    images = torch.randn(num_samples, 2, height, width, generator=generator)
    labels = torch.randint(0, 3, shape, generator=generator).to(torch.uint8)
    valid = torch.ones(shape, dtype=torch.bool)
    labels[0, : height // 3, : width // 2] = IGNORE
    valid[0, height // 4 : height // 2, -40:] = False  # up to the border, where tiles are padded
    images[0, :, height // 4 : height // 2, -20:] = torch.nan
    return Batch(images, valid, ClassRasters(labels), count_terms(loss, ClassRasters(labels), weights))


def _loss_terms(loss: str, weights: Weights) -> LossTerms:
    terms = make_loss_terms(loss, BandStatistics((0.1, -0.1), (1.2, 0.9)), weights)
    return lambda model, batch: terms(lambda x: model(x.double()), batch)  # type: ignore[arg-type]


def _largest_difference(
    model: nn.Module, batch: Batch, plan: Plan, *, loss: str = "cross_entropy", weights: Weights = None
) -> float:
    """Return by how much a plan differs from the plain step, as a share of each term's and gradient's largest value."""
    found: list[list[Tensor]] = []
    for each in (plan, WHOLE):
        model.zero_grad(set_to_none=True)
        terms = compose(model, _loss_terms(loss, weights), each, bf16=False)(batch, last=True)
        gradients = [p.grad for p in model.parameters()]
        assert all(g is not None and g.isfinite().all() and g.any() for g in gradients)
        found.append([*terms.values(), *(g for g in gradients if g is not None)])
    pairs = zip(*found, strict=True)
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


@pytest.mark.parametrize("upsampling", UPSAMPLINGS)
@pytest.mark.parametrize(
    ("shape", "core_px"), [((1, 207, 330), 64), ((3, 229, 201), 96), ((1, 200, 256), 128)]
)
def test_tiles_add_up_to_the_whole_image(upsampling: str, shape: tuple[int, int, int], core_px: int) -> None:
    plan = replace(WHOLE, tiles=_tiling(core_px, _halo(upsampling)))
    assert _largest_difference(_unet(upsampling), _batch(shape), plan) < 1e-12


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    height=st.integers(200, 330),
    width=st.integers(200, 330),
    core_px=st.sampled_from((44, 72, 100, 180, 400)),
    micro_batches=st.sampled_from((None, 2)),
)
def test_any_size_and_core(height: int, width: int, core_px: int, micro_batches: int | None) -> None:
    batch = _batch((1 if micro_batches is None else 3, height, width))
    plan = replace(WHOLE, tiles=_tiling(core_px, _halo()), micro_batches=micro_batches)
    assert _largest_difference(_unet(), batch, plan) < 1e-12


@pytest.mark.parametrize(
    ("loss", "weights"),
    [("focal", None), ("focal", WEIGHTS), ("cross_entropy", WEIGHTS), ("cross_entropy+focal", None)],
)
@pytest.mark.parametrize("micro_batches", [pytest.param(None, marks=pytest.mark.long), 2])
def test_every_local_loss(loss: str, weights: Weights, micro_batches: int | None) -> None:
    plan = replace(WHOLE, tiles=_tiling(96, _halo()), micro_batches=micro_batches)
    batch = _batch((3, 201, 215), loss, weights)
    assert _largest_difference(_unet(), batch, plan, loss=loss, weights=weights) < 1e-12


@pytest.mark.parametrize("upsampling", UPSAMPLINGS)
def test_a_halo_one_stride_too_short_shows(upsampling: str) -> None:
    halo = _halo(upsampling)
    short = replace(WHOLE, tiles=_tiling(64, halo.at_most(halo.largest_px - halo.stride_px)))
    assert _largest_difference(_unet(upsampling), _batch((1, 215, 230)), short) > 1e-6


def test_a_part_holds_its_window_and_the_labels_of_its_core() -> None:
    batch, tiles = _batch((2, 101, 79)), cover(101, 79, 32, _halo())
    batch = replace(batch, images=(batch.images.nan_to_num() * 1000 + 30_000).to(torch.uint16))
    labels = torch.full_like(batch.targets.labels, IGNORE)
    for tile in tiles:
        part = take_tile(batch, tile)
        assert (
            part.images.shape[-2:]
            == part.valid.shape[1:]
            == part.targets.labels.shape[1:]
            == (
                tile.read.height,
                tile.read.width,
            )
        )
        rows, cols = min(tile.read.row_end, 101) - tile.read.row, min(tile.read.col_end, 79) - tile.read.col
        assert part.images[..., :rows, :cols].equal(batch.images[..., *tile.read.slices])
        assert part.valid[..., :rows, :cols].equal(batch.valid[..., *tile.read.slices])
        assert not part.valid[:, rows:].any()
        assert not part.valid[..., cols:].any()
        assert part.images.dtype == torch.uint16
        assert part.totals == batch.totals
        core = tile.core.within(tile.read)
        labels[:, *tile.core.slices] = part.targets.labels[:, *core.slices]
        part.targets.labels[:, *core.slices] = IGNORE
        assert (part.targets.labels == IGNORE).all()
    assert labels.equal(batch.targets.labels)


def _peak_bytes(side_px: int, plan: Plan) -> int:
    model = _unet().float().to("meta")
    size = (1, side_px, side_px)
    batch = Batch(
        images=torch.zeros(1, 2, side_px, side_px, device="meta"),
        valid=torch.ones(size, dtype=torch.bool, device="meta"),
        targets=ClassRasters(torch.zeros(size, dtype=torch.uint8, device="meta")),
        totals={"cross_entropy": float(side_px**2)},
    )
    step = compose(
        model, make_loss_terms("cross_entropy", BandStatistics((0.0, 0.0), (1.0, 1.0))), plan, bf16=False
    )
    with LiveBytes() as live:
        step(batch, last=True)
    return int(live.peak_bytes)


def test_peak_memory_is_that_of_one_tile_whatever_the_image() -> None:
    halo = _halo()
    tiles = replace(WHOLE, tiles=_tiling(512, halo))
    window_px = 512 + halo.rows.before_px + halo.rows.after_px
    of_one_tile = _peak_bytes(window_px, WHOLE)
    for side_px in (2000, 5000):
        # besides: the labels of the part, a byte for each pixel, and the gradients so far
        assert of_one_tile <= _peak_bytes(side_px, tiles) < 1.02 * of_one_tile
    assert _peak_bytes(4000, WHOLE) > 40 * of_one_tile


def test_a_core_out_of_step_with_the_stride_is_refused() -> None:
    step = compose(
        _unet(), _loss_terms("cross_entropy", None), replace(WHOLE, tiles=_tiling(66, _halo())), bf16=False
    )
    with pytest.raises(PlanError, match="66 px"):
        step(_batch((1, 201, 202)), last=True)


def test_maps_are_cut_as_pixels_are() -> None:
    batch = _batch((2, 40, 36))
    marks = torch.arange(40 * 36).remainder(251).view(1, 40, 36).repeat(2, 1, 1).to(torch.uint8)
    batch = replace(batch, maps={"marks": marks})
    for tile in cover(40, 36, 16, (8, 8), stride_px=8):
        part = take_tile(batch, tile)
        assert part.maps["marks"].shape == (2, tile.read.height, tile.read.width)
        core = part.maps["marks"][:, *tile.core.within(tile.read).slices]
        assert torch.equal(core, marks[:, *tile.core.slices])
