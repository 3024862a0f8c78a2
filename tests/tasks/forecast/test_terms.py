"""What forecasting learns: sums over counts, the base that an answer is added to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from outsize.data.batch import Batch
from outsize.data.frames import NumberGrids
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.errors import JobError, ModelError
from outsize.models import build_model
from outsize.tasks.forecast import terms

STATISTICS = BandStatistics((0.0,) * 5, (1000.0,) * 5)


def _batch(base: int | None) -> Batch:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 3000, (2, 5, 8, 8)).astype(np.int16))
    grids = NumberGrids(images[:, 3:5].clone(), ("", ""), base)
    return Batch(images, torch.ones(2, 8, 8, dtype=torch.bool), grids, terms.count_terms("rain", grids))


def test_the_answer_is_added_to_the_base() -> None:
    model = build_model("unet", num_classes=2, in_channels=5, levels=2, width=4, zero_head=True).eval()
    loss = terms.make_loss_terms("plain_rain", STATISTICS)
    assert float(loss(model, _batch(3))["plain_rain"].detach()) == pytest.approx(
        0, abs=1e-4
    )  # the base is right
    assert float(loss(model, _batch(None))["plain_rain"].detach()) > 100


def test_other_losses_and_models_are_refused() -> None:
    with pytest.raises(JobError, match="rain, plain_rain"):
        terms.make_loss_terms("rain+cross_entropy", STATISTICS)
    with pytest.raises(ModelError, match="unet, convlstm"):
        terms.make_loss_terms("rain", STATISTICS)(nn.Conv2d(5, 3, 1), _batch(3))


def test_made_up_batches_become_grids() -> None:
    model = build_model("convlstm", num_classes=2, in_channels=5, num_in=3, width=4)
    images, labels = torch.randn(2, 5, 16, 16), torch.randint(0, 2, (2, 16, 16), dtype=torch.uint8)
    labels[0, 0] = 255
    batch = Batch(images, torch.ones(2, 16, 16, dtype=torch.bool), ClassRasters(labels), {})
    made = terms.complete(batch, model, "rain", STATISTICS)
    grids = terms.grids_of(made.targets)
    assert grids.numbers.shape == (2, 2, 16, 16)
    assert (grids.numbers[0, :, 0] == -1000).all()
    assert terms.complete(made, model, "rain", STATISTICS) is made
    assert terms.is_local("rain+plain_rain")
