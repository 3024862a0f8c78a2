"""Each network overfits four pictures: its loss falls tenfold within some seconds."""

from __future__ import annotations

import pytest
import torch

from outsize.data.batch import Batch
from outsize.data.inputs.edges import MapMaker
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.models import build_model
from outsize.plan.plan import Plan
from outsize.strategies.compose import compose
from outsize.tasks.segment.terms import count_terms, make_loss_terms, wanted_maps

_SIDE_PX = 48
_DISCS = ((14, 20, 9), (30, 14, 10), (20, 30, 12), (32, 32, 8))  # row, column, radius
_CORNERS = ((30, 30), (20, 25), (35, 10), (14, 12))  # a rectangle from there to the end


def _pictures() -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = torch.arange(_SIDE_PX)[:, None], torch.arange(_SIDE_PX)[None]
    labels = torch.zeros(4, _SIDE_PX, _SIDE_PX, dtype=torch.uint8)
    for label, (row, col, radius), (top, left) in zip(labels, _DISCS, _CORNERS, strict=True):
        label[top:, left:] = 2
        label[(rows - row) ** 2 + (cols - col) ** 2 < radius**2] = 1
    grain = torch.randint(-20, 20, (4, 3, *labels.shape[1:]), generator=torch.Generator().manual_seed(0))
    return (60 + 70 * labels[:, None].long() + grain).clamp(0, 255).to(torch.uint8), labels


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "loss", "num_steps", "options"),
    [
        ("erfnet", "cross_entropy", 60, {"width": 8, "dropout": 0.0, "early_dropout": 0.0}),
        ("gscnn", "gscnn", 75, {"width": 8}),
        ("smp:DeepLabV3Plus/resnet18", "cross_entropy", 14, {}),
    ],
)
def test_the_loss_falls_tenfold(name: str, loss: str, num_steps: int, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=3, in_channels=3, **options).train()
    images, labels = _pictures()
    valid = torch.ones_like(labels, dtype=torch.bool)
    maps = MapMaker(wanted_maps(model, loss), (1.0,) * 3)(images, valid, ClassRasters(labels))
    batch = Batch(
        images, valid, ClassRasters(labels), count_terms(loss, ClassRasters(labels), maps=maps), maps
    )
    terms = make_loss_terms(loss, BandStatistics((100.0,) * 3, (50.0,) * 3))
    step = compose(model, terms, Plan("train", 4, 1, 1, exact=True, why=()), bf16=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for number in range(num_steps):
        torch.manual_seed(number)
        losses.append(float(torch.stack(list(step(batch, last=True).values())).sum()))
        optimizer.step()
        optimizer.zero_grad()
    assert min(losses[-3:]) < losses[0] / 10
