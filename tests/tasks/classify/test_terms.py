"""Losses of pictures: sums over counts that add up, and shapes that take what real pictures take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters, OneClassEach
from outsize.models import build_model
from outsize.plan.plan import unplanned
from outsize.strategies.compose import compose
from outsize.tasks.classify import terms

STATISTICS = BandStatistics((0.0,), (1.0,))


def batch_of(num: int, side: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num, 1, side, side, generator=generator)
    classes = torch.arange(num, dtype=torch.uint8) % 3
    classes[0] = IGNORE
    valid = torch.ones(num, side, side, dtype=torch.bool)
    return Batch(images, valid, OneClassEach(classes), {})


@pytest.mark.parametrize("loss", ["cross_entropy", "focal", "cross_entropy+focal"])
def test_parts_of_a_batch_add_up(loss: str) -> None:
    model = build_model("digits", num_classes=3, in_channels=1, picture_px=12).eval()
    batch = batch_of(6)
    sums = terms.make_loss_terms(loss, STATISTICS, (1.0, 2.0, 3.0))
    whole = sums(model, batch)
    parts = [sums(model, batch.part(slice(first, first + 2))) for first in (0, 2, 4)]
    for name, value in whole.items():
        torch.testing.assert_close(sum(part[name] for part in parts), value)
    counts = terms.count_terms(loss, batch.targets, (1.0, 2.0, 3.0))
    assert counts == dict.fromkeys(whole, 2 + 3 + 1 + 2 + 3)


def test_made_up_labels_become_one_class_each() -> None:
    batch = batch_of(4)
    labels = torch.arange(4, dtype=torch.uint8)[:, None, None].expand(4, 12, 12)
    made = Batch(batch.images, batch.valid, ClassRasters(labels), {})
    model = build_model("digits", num_classes=4, in_channels=1, picture_px=12)
    found = terms.complete(made, model, "cross_entropy", STATISTICS).targets
    assert terms.classes_of(found).tolist() == [0, 1, 2, 3]


def test_a_window_is_as_many_pictures_as_it_has_room_for() -> None:
    model = build_model("digits", num_classes=3, in_channels=2, picture_px=[12, 20])
    assert terms.PicturesOnShapes(model)(torch.zeros(2, 2, 50, 64)).shape == (2 * 4 * 3, 3)
    assert terms.PicturesOnShapes(model)(torch.zeros(1, 2, 8, 8)).shape == (1, 3)
    assert not terms.halo(model, 2).exact
    loss = terms.loss_on_shapes("cross_entropy")
    assert loss(model, torch.zeros(4, 2, 12, 20, dtype=torch.uint8)).dim() == 0


def test_four_pictures_are_learnt_by_heart() -> None:
    torch.manual_seed(0)
    model = build_model("digits", num_classes=4, in_channels=1, picture_px=12).train()
    batch = batch_of(4)
    learnt = replace(batch, targets=OneClassEach(torch.arange(4, dtype=torch.uint8)))
    learnt = replace(learnt, totals=terms.count_terms("cross_entropy", learnt.targets))
    sums = terms.make_loss_terms("cross_entropy", STATISTICS)
    step = compose(model, sums, unplanned(), bf16=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        losses.append(float(step(learnt, last=True)["cross_entropy"]))
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] / 10
