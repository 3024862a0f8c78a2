"""FCOS and RetinaNet learn what torchvision's learn, picture by picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outsize.data.targets import BoxList, BoxLists
from outsize.losses.dense import TERMS, sums
from outsize.models import build_model
from outsize.models.dense import FCOS_NAME, RETINANET_NAME, DenseDetector

_SIZE = (128, 256)
_BOXES = ((10, 20, 70, 60, 0), (50, 30, 170, 120, 1), (200, 90, 216, 104, 0))


def _batch(*pictures: tuple[tuple[int, ...], ...]) -> BoxLists:
    lists = []
    for rows in pictures:
        table = np.array(rows, np.float64).reshape(-1, 5)
        lists.append(BoxList(_SIZE, table[:, :4].astype(np.float32), table[:, 4].astype(np.int64)))
    return lists[0].stack(lists)


def _model(name: str) -> DenseDetector:
    torch.manual_seed(0)
    model = build_model(name, num_classes=2, in_channels=3)
    assert isinstance(model, DenseDetector)
    return model.eval()


def _theirs(model: DenseDetector) -> Any:
    from torchvision.models import detection

    whole = getattr(detection, model.name.partition(":")[2])(
        weights=None, weights_backbone=None, num_classes=3
    )
    whole.backbone, whole.head = model.backbone, model.head
    return whole.eval()


def _their_losses(
    model: DenseDetector, images: Tensor, boxes: tuple[tuple[int, ...], ...]
) -> dict[str, float]:
    whole = _theirs(model)
    features = list(whole.backbone(images).values())
    said = whole.head(features)
    answers = model(images)
    table = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 5)
    target = [{"boxes": table[:, :4], "labels": table[:, 4].long() + 1}]
    more = ([len(each) for each in answers.anchors.split(answers.sizes)],) if model.is_linear else ()
    found = whole.compute_loss(target, said, [answers.anchors], *more)
    names = dict(zip(("classification", "bbox_regression", "bbox_ctrness"), TERMS, strict=False))
    return {names[name]: float(each) for name, each in found.items()}


@pytest.mark.parametrize("name", [FCOS_NAME, RETINANET_NAME])
def test_losses_are_torchvisions_and_add_up_over_pictures(name: str) -> None:
    model = _model(name)
    torch.manual_seed(1)
    images = torch.randn(2, 3, *_SIZE)
    with torch.no_grad():
        pictures = (_BOXES, ())
        apart = [_their_losses(model, images[n : n + 1], pictures[n]) for n in range(2)]
        found = sums(model, model(images), _batch(*pictures))
    assert tuple(found) == TERMS[: 2 + model.is_linear]
    for term, each in found.items():
        assert float(each) == pytest.approx(apart[0][term] + apart[1][term], rel=2e-5)
    assert min(apart[0].values()) > 0


@pytest.mark.parametrize("name", [FCOS_NAME, RETINANET_NAME])
def test_nothing_is_learnt_inside_of_what_is_neutral(name: str) -> None:
    model = _model(name)
    with torch.no_grad():
        answers = model(torch.zeros(1, 3, *_SIZE))
        whole, none = sums(model, answers, _batch(((0, 0, 256, 128, -1),))), sums(model, answers, _batch(()))
        both = sums(model, answers, _batch((*_BOXES, (0, 0, 256, 128, -1))))
        alone = sums(model, answers, _batch(_BOXES))
    assert 0 <= float(whole["classification"]) < 0.2 * float(none["classification"])
    assert float(both["box"]) == float(alone["box"])
    assert float(both["classification"]) < float(alone["classification"])


@pytest.mark.parametrize("name", [FCOS_NAME, RETINANET_NAME])
def test_every_weight_has_a_finite_gradient(name: str) -> None:
    model = _model(name)
    found = sums(model, model(torch.randn(1, 3, *_SIZE)), _batch(_BOXES))
    torch.stack(list(found.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())
