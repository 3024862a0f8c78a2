"""On a GPU: tiles streamed through pinned slots give the map that the CPU gives, and the plan's peak holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.synthetic.scenes import draw_scene
from outsize.data.targets import ClassRasters
from outsize.infer.compare import tiled_difference
from outsize.library.predict import predict
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.measure.tracing.step import trace_step
from outsize.measure.trying.probe import probe_halo
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.plan import Plan
from outsize.raster.reading import SceneReader, describe
from outsize.strategies.compose import compose
from outsize.tasks.segment.terms import count_terms, loss_on_shapes, make_loss_terms
from outsize.tiles.halo import derive_halo


def _model(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model("unet", num_classes=6, in_channels=4, **{"levels": 4, "width": 16, **options}).eval()


def _classes(path: Path) -> np.ndarray:
    info = describe(path)
    with SceneReader(info) as reader:
        return reader.read(info.window).pixels[0]


def test_gpu_map_equals_cpu_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = draw_scene(tmp_path, "scene", 700, 900, seed=1, vectors=False)
    statistics = ([1000.0] * 4, [500.0] * 4)
    maps = {}
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for device in ("cpu", "cuda"):
        target = tmp_path / f"{device}.tif"
        limits = {"tile_px": 128}
        predict(
            _model(), scene, target, statistics=statistics, limits=limits, device=device, precision="fp32"
        )
        maps[device] = _classes(target)
    # ties between classes fall either way in float32
    assert (maps["cpu"] != maps["cuda"]).mean() < 1e-4


@pytest.mark.parametrize("upsampling", ["transposed", "nearest", "bilinear"])
def test_halo_is_sufficient_and_tight_on_the_gpu(upsampling: str) -> None:
    model = _model(upsampling=upsampling)
    halo = derive_halo(trace(model, example_shape(4)))
    probe = probe_halo(model, halo, device="cuda")
    assert probe.sufficient
    assert probe.tight


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("upsampling", ["transposed", "nearest", "bilinear"])
def test_tiled_equals_whole_on_the_gpu(
    upsampling: str, norm: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = _model(levels=5, upsampling=upsampling, norm=norm).to("cuda", dtype)
    halo = derive_halo(trace(model, example_shape(4)))
    difference = tiled_difference(model, torch.randn(1, 4, 512, 512, device="cuda", dtype=dtype), 64, halo)
    assert difference.interior_tiles > 0
    assert difference.relative <= tolerance


def test_predicted_training_peak_holds() -> None:
    device, batch, tile_px = torch.device("cuda", 0), 4, 512
    torch.cuda.set_per_process_memory_fraction(0.2)
    model = _model(levels=5, width=32)
    facts = trace_step(
        model,
        (batch, 4, tile_px, tile_px),
        loss=loss_on_shapes("cross_entropy"),
        optimizer=torch.optim.AdamW,
        bf16=True,
    )
    predicted_bytes = StepCost(facts).peak_bytes()
    plan = Plan("train", batch, 24 << 30, predicted_bytes, exact=True, why=())
    model.to(device).to(memory_format=torch.channels_last).train()
    statistics = BandStatistics((0.0,) * 4, (1.0,) * 4)
    step = compose(model, make_loss_terms("cross_entropy", statistics), plan, bf16=True)
    labels = torch.randint(0, 6, (batch, tile_px, tile_px), dtype=torch.uint8)
    images = torch.randint(1, 4000, (batch, 4, tile_px, tile_px), dtype=torch.uint16)
    samples = Batch(
        images,
        torch.ones(labels.shape, dtype=torch.bool),
        ClassRasters(labels),
        count_terms("cross_entropy", ClassRasters(labels)),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    others_bytes = torch.cuda.memory_allocated() - sum(each.nbytes for each in model.state_dict().values())
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        step(samples.to(device), last=True)
        optimizer.step()
        optimizer.zero_grad()
    peak_bytes = torch.cuda.max_memory_allocated() - others_bytes
    print(f"predicted {predicted_bytes / 2**20:.0f} MiB, measured {peak_bytes / 2**20:.0f} MiB")
    assert 0.9 < predicted_bytes / peak_bytes < 1.1
