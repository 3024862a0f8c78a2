"""On a GPU: a step in tiles has the gradient of the whole image in float64, at the memory of one tile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.measure.apart import Outcome, apart, outcome_of
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.models import build_model
from outsize.plan.plan import Plan, Tiling
from outsize.strategies.compose import compose
from outsize.tasks.segment.terms import count_terms, make_loss_terms
from outsize.tiles.halo import derive_halo

DEVICE = torch.device("cuda")
BANDS, CLASSES, LOSS, SIDE_PX, CORE_PX = 4, 5, "cross_entropy", 1024, 256
PLAIN = Plan(purpose="train", batch=1, limit_bytes=1, peak_bytes=1, exact=True, why=())


def _model() -> nn.Module:
    torch.manual_seed(0)
    options = {"levels": 3, "width": 16, "norm": "none"}
    return build_model("unet", num_classes=CLASSES, in_channels=BANDS, **options).to(DEVICE).double()


def _tiling(model: nn.Module) -> Tiling:
    halo = derive_halo(trace(model, example_shape(BANDS))).aligned
    before, after = (halo.rows.before_px, halo.cols.before_px), (halo.rows.after_px, halo.cols.after_px)
    return Tiling(CORE_PX, before, after, halo.stride_px)


def _batch(side_px: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (1, side_px, side_px), generator=generator, dtype=torch.uint8)
    images = torch.randn(1, BANDS, side_px, side_px, generator=generator)
    valid = torch.rand(labels.shape, generator=generator) > 0.1
    return Batch(images, valid, ClassRasters(labels), count_terms(LOSS, ClassRasters(labels))).to(DEVICE)


def _run(tiling: Tiling | None, side_px: int) -> tuple[Outcome, int]:
    """Run one step after a small one to warm up; returns what it leaves, and its peak above model and batch."""
    model = _model()
    terms = make_loss_terms(LOSS, BandStatistics((0.0,) * BANDS, (1.0,) * BANDS))

    def in_double(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return dict(terms(lambda images: model(images.double()), batch))  # type: ignore[arg-type]

    step = compose(model, in_double, replace(PLAIN, tiles=tiling), bf16=False)
    step(_batch(64), last=True)
    model.zero_grad(set_to_none=True)
    batch = _batch(side_px)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    found = outcome_of(model, lambda: step(batch, last=True))
    return found, torch.cuda.max_memory_allocated() - before_bytes


def test_tiled_step_equals_whole_step_at_the_memory_of_one_tile() -> None:
    tiling = _tiling(_model())
    window_px = CORE_PX + tiling.halo_before_px[0] + tiling.halo_after_px[0]
    whole, whole_bytes = _run(None, SIDE_PX)
    tiled, tiled_bytes = _run(tiling, SIDE_PX)
    _, tile_bytes = _run(None, window_px)
    found = apart(tiled, whole)
    print(f"loss {found.loss:.1e}, gradients {found.gradients:.1e} ({found.most})")
    print(
        f"peak: whole {whole_bytes / 2**20:.0f} MiB, tiled {tiled_bytes / 2**20:.0f}, one tile {tile_bytes / 2**20:.0f}"
    )
    assert found.largest <= 1e-10
    assert tiled_bytes == pytest.approx(tile_bytes, rel=0.1)
    assert tiled_bytes < 0.25 * whole_bytes


def test_a_halo_too_short_is_seen_in_the_gradient() -> None:
    tiling = _tiling(_model())
    short = tuple(each - tiling.stride_px for each in tiling.halo_before_px)
    whole, _ = _run(None, SIDE_PX)
    tiled, _ = _run(replace(tiling, halo_before_px=short), SIDE_PX)
    assert apart(tiled, whole).largest > 1e-10
