"""On a GPU: maps are those of the CPU to the bit, and a step of G-SCNN and of ERFNet's phases is that of the CPU."""

from __future__ import annotations

import pytest
import torch

from outsize.card import to_device
from outsize.data.batch import Batch
from outsize.data.inputs.edges import MapMaker
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.models import build_model
from outsize.plan.plan import Plan
from outsize.strategies.compose import compose
from outsize.tasks.segment.terms import count_terms, make_loss_terms

DEVICE = torch.device("cuda")
PLAIN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=())


def _batch(loss: str, side_px: int = 96) -> Batch:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(2, 3, side_px // 8, side_px // 8, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, scale_factor=8, mode="bicubic")
    images = (
        (128 + 60 * smooth + torch.randn(smooth.shape, generator=generator)).clamp(0, 255).to(torch.uint8)
    )
    labels = (smooth[:, 0] > 0).to(torch.uint8) + (smooth[:, 1] > 0.5).to(torch.uint8)
    valid = torch.rand(labels.shape, generator=generator) > 0.01
    maps = MapMaker(("canny", "edges"), (1.0,) * 3)(images, valid, ClassRasters(labels))
    return Batch(
        images,
        valid,
        ClassRasters(labels),
        count_terms(loss, ClassRasters(labels), maps=maps, strides=(1, 8)),
        maps,
    )


def test_maps_are_those_of_the_cpu_to_the_bit() -> None:
    here = _batch("gscnn", 512)
    there = here.to(DEVICE)
    found = MapMaker(("canny", "edges"), (1.0,) * 3)(there.images, there.valid, there.targets)
    for name, each in found.items():
        assert torch.equal(each.cpu(), here.maps[name]), name
        assert each.any()


@pytest.mark.parametrize(
    ("name", "loss", "options"),
    [
        ("gscnn", "gscnn", {"width": 8}),
        ("erfnet", "cross_entropy", {"width": 8, "output": "encoder"}),
        ("erfnet", "cross_entropy", {"width": 8}),
    ],
)
def test_a_step_is_that_of_the_cpu_and_bf16_is_near_it(
    name: str, loss: str, options: dict[str, object]
) -> None:
    def run(device: torch.device, *, bf16: bool) -> dict[str, float]:
        torch.manual_seed(0)
        model = to_device(build_model(name, num_classes=3, in_channels=3, **options), device).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout2d):
                module.p = 0.0
        step = compose(
            model, make_loss_terms(loss, BandStatistics((128.0,) * 3, (60.0,) * 3)), PLAIN, bf16=bf16
        )
        terms = step(_batch(loss).to(device), last=True)
        assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())
        # Gumbel's noise is another on each device
        return {term: float(value) for term, value in terms.items() if term != "dual"}

    expected = run(torch.device("cpu"), bf16=False)
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert run(DEVICE, bf16=False) == pytest.approx(expected, rel=2e-3, abs=1e-4)
    assert run(DEVICE, bf16=True) == pytest.approx(expected, rel=0.1, abs=0.05)
