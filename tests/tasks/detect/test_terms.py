"""What is learnt of boxes: each detector's own terms, halves that add up, shapes alone, other models refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tasks.detect.painted import STATISTICS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from outsize.data.batch import Batch
from outsize.data.targets import BoxList, BoxLists, ClassRasters
from outsize.errors import ModelError
from outsize.models import build_model
from outsize.models.dense import FCOS_NAME, RETINANET_NAME
from outsize.models.fasterrcnn import FASTER_NAME
from outsize.plan.plan import unplanned
from outsize.strategies.compose import compose
from outsize.tasks import task_of
from outsize.tasks.detect import terms
from outsize.tiles.halo import Reach


def _batch(num: int, dtype: torch.dtype = torch.float64) -> Batch:
    torch.manual_seed(3)
    lists = [
        BoxList((64, 96), np.array([[8 * n, 10, 60, 50]], np.float32), np.array([n % 2])) for n in range(num)
    ]
    targets = lists[0].stack(lists)
    images = torch.randn(num, 3, 64, 96, dtype=dtype)
    return Batch(images, torch.ones(num, 64, 96, dtype=torch.bool), targets, terms.count_terms("", targets))


@pytest.mark.parametrize(
    ("name", "options", "num_terms"),
    [
        ("fastbox", {"encoder": "resnet18", "dropout": 0.0}, 4),
        (FCOS_NAME, {}, 3),
        (FASTER_NAME, {"proposals": 50, "rois_per_image": 16}, 4),
    ],
)
def test_four_pictures_are_two_and_two(name: str, options: dict[str, object], num_terms: int) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=2, in_channels=3, **options).double().eval()
    batch = _batch(4)
    step = compose(model, terms.make_loss_terms("", STATISTICS), unplanned(), bf16=False)
    whole = step(batch, last=True)
    gradients = {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    halves = [step(batch.part(part), last=True) for part in (slice(0, 2), slice(2, 4))]
    assert len(whole) == num_terms
    for term, value in whole.items():
        assert float(halves[0][term] + halves[1][term]) == pytest.approx(float(value), rel=1e-12)
    for key, each in model.named_parameters():
        if each.grad is not None:
            worst = float((each.grad - gradients[key]).abs().max())
            assert worst <= 1e-12 * max(1.0, float(gradients[key].abs().max())), key


@pytest.mark.parametrize("name", ["fastbox", FCOS_NAME, RETINANET_NAME, FASTER_NAME])
def test_shapes_alone_have_a_loss(name: str) -> None:
    """A plan follows a step on shapes: nothing may depend on the numbers."""
    with FakeTensorMode(), torch.device("cpu"):
        model = build_model(name, num_classes=1, in_channels=3)
        loss = terms.loss_on_shapes("")(model, torch.empty(2, 3, 64, 96))
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.shape == ()


def test_made_up_pixels_get_boxes() -> None:
    model = build_model("fastbox", num_classes=1, in_channels=3, encoder="resnet18")
    images = torch.zeros(2, 3, 64, 96)
    rasters = ClassRasters(torch.zeros(2, 64, 96, dtype=torch.uint8))
    batch = Batch(images, torch.ones(2, 64, 96, dtype=torch.bool), rasters, {})
    whole = terms.complete(batch, model, "", STATISTICS)
    assert isinstance(whole.targets, BoxLists)
    assert terms.complete(whole, model, "", STATISTICS) is whole
    found = terms.DetectorOnShapes(model.eval())(images)
    assert [each.shape for each in found] == [(6, 4), (6, 4)]


def test_tiles_overlap_by_the_size_of_objects_and_other_models_are_refused() -> None:
    model = build_model("fastbox", num_classes=1, in_channels=3, encoder="resnet18", overlap_px=100)
    halo = terms.halo(model, 3)
    assert (halo.rows, halo.cols, halo.stride_px) == (Reach(64, 64), Reach(64, 64), 32)
    assert not task_of("detect").is_local("")
    assert task_of("detect").wanted_maps(model, "") == ()
    with pytest.raises(ModelError, match="model that finds boxes"):
        terms.detector(nn.Conv2d(3, 3, 1))
