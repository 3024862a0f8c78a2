"""FCOS and RetinaNet find what torchvision's find with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outsize.errors import ModelError
from outsize.models import build_model
from outsize.models.boxes import is_there
from outsize.models.dense import FCOS_NAME, RETINANET_NAME, DenseDetector
from outsize.models.unsteady import ON_SHAPES

_SIZE = (128, 256)


def _both(name: str) -> tuple[DenseDetector, Any]:
    from torchvision.models import detection

    torch.manual_seed(0)
    ours = build_model(name, num_classes=2, in_channels=3, score=0.05, nms_iou=0.5)
    assert isinstance(ours, DenseDetector)
    theirs = getattr(detection, name.partition(":")[2])(
        weights=None, weights_backbone=None, num_classes=3, score_thresh=0.05, nms_thresh=0.5,
        detections_per_img=300, topk_candidates=1000,
    )  # fmt: skip
    with torch.no_grad():
        ours.head.classification_head.cls_logits.weight.mul_(5)
        ours.head.classification_head.cls_logits.bias.fill_(-1.0)
        for each in (
            ours.head.classification_head.cls_logits.weight,
            ours.head.classification_head.cls_logits.bias,
        ):
            each[::3] = 0  # torchvision finds class 0, which is none
        ours.head.classification_head.cls_logits.bias[::3] = -30.0
        if ours.is_linear:
            ours.head.regression_head.bbox_reg.bias.fill_(1.0)  # boxes with an area
    missing = theirs.load_state_dict(ours.state_dict())
    assert not missing.missing_keys
    return ours.eval(), theirs.eval()


@pytest.mark.parametrize("name", [FCOS_NAME, RETINANET_NAME])
def test_names_and_answers_are_torchvisions(name: str) -> None:
    ours, theirs = _both(name)
    images = torch.randn(2, 3, *_SIZE)
    with torch.no_grad():
        found = ours.find(ours(images), _SIZE)
        features = list(theirs.backbone(images).values())
        answers = ours(images)
        parts = {key: list(each.split(answers.sizes, 1)) for key, each in theirs.head(features).items()}
        anchors = [list(answers.anchors.split(answers.sizes))] * 2
        expected = theirs.postprocess_detections(parts, anchors, [_SIZE, _SIZE])
    for one, other in zip(found, expected, strict=True):
        has_area = is_there(other["boxes"])  # what lies outside of the picture is not found by ours
        num = min(80, len(one["scores"]), int(has_area.sum()))  # likelier ones than those of equal scores
        assert num > 20
        for key in ("labels", "scores", "boxes"):
            torch.testing.assert_close(one[key][:num], other[key][has_area][:num], rtol=1e-4, atol=1e-3)
        assert bool(one["sound"])


@pytest.mark.parametrize("name", [FCOS_NAME, RETINANET_NAME])
def test_anchors_are_torchvisions(name: str) -> None:
    from torchvision.models.detection.image_list import ImageList

    ours, theirs = _both(name)
    images = torch.zeros(1, 3, *_SIZE)
    with torch.no_grad():
        features = list(theirs.backbone(images).values())
        (expected,) = theirs.anchor_generator(ImageList(images, [_SIZE]), features)
        torch.testing.assert_close(ours(images).anchors, expected)


def test_other_bands_any_size_and_shapes_alone() -> None:
    model = build_model(FCOS_NAME, num_classes=3, in_channels=5).eval()
    assert isinstance(model, DenseDetector)
    with torch.no_grad():
        answers = model(torch.randn(1, 5, 70, 101))
        (found,) = model.find(answers, (70, 101), ON_SHAPES)
    assert answers.logits.shape[2] == 4
    assert len(found["boxes"]) == min(300, sum(answers.sizes) * 3)


def test_another_name_is_refused() -> None:
    with pytest.raises(ModelError, match="unknown model"):
        build_model("torchvision:fcos_resnet18", num_classes=1, in_channels=3)
