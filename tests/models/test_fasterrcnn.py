"""Faster R-CNN finds what torchvision's finds on the same weights, and learns nothing of what is neutral."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outsize.data.targets import BoxList
from outsize.losses import instances
from outsize.models import build_model
from outsize.models.fasterrcnn import FASTER_NAME, FasterRCNN, Pyramid
from outsize.models.proposals import BoxAnswers

_SIZE = (128, 192)


@pytest.fixture(scope="module")
def model() -> FasterRCNN:
    torch.manual_seed(0)
    built = build_model(FASTER_NAME, num_classes=2, in_channels=3, proposals=60, most=40)
    assert isinstance(built, FasterRCNN)
    return built.eval()


def _theirs(model: FasterRCNN) -> Any:
    from torchvision.models import detection

    limits = {"rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 60, "box_detections_per_img": 40}
    plain = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "min_size": _SIZE[0], "max_size": _SIZE[1]}
    whole = detection.fasterrcnn_resnet50_fpn_v2(
        weights=None, weights_backbone=None, num_classes=3, box_score_thresh=0.01, **limits, **plain
    )
    whole.load_state_dict(model.state_dict())
    return whole.eval()


def test_it_finds_what_torchvisions_finds(model: FasterRCNN) -> None:
    torch.manual_seed(1)
    images = torch.rand(2, 3, *_SIZE)
    with torch.no_grad():
        said = model(images)
        assert isinstance(said, Pyramid)
        found, expected = model.find(said, _SIZE), _theirs(model)(list(images))
    for own, their in zip(found, expected, strict=True):
        assert len(own["boxes"]) == len(their["boxes"]) > 10
        assert bool(own["sound"])
        for name in ("boxes", "scores"):
            torch.testing.assert_close(own[name], their[name], rtol=1e-4, atol=1e-3)
        assert torch.equal(own["labels"], their["labels"])


def _losses(model: FasterRCNN, images: Tensor, rows: list[tuple[int, ...]]) -> dict[str, Tensor]:
    table = np.array(rows, np.float64).reshape(-1, 5)
    targets = BoxList(_SIZE, table[:, :4].astype(np.float32), table[:, 4].astype(np.int64))
    objects = instances.of_boxes(targets.stack([targets]), ())
    answers = model(images, lambda found: instances.draw_boxes(found, objects, 32))
    assert isinstance(answers, BoxAnswers)
    anchors = instances.draw_anchors(answers.anchors, objects)
    return instances.box_sums(answers, objects, anchors, answers.chosen)


def test_nothing_is_learnt_of_what_is_neutral_and_of_places_without_a_box(model: FasterRCNN) -> None:
    torch.manual_seed(2)
    images = torch.rand(1, 3, *_SIZE)
    with torch.no_grad():
        none, neutral = _losses(model, images, []), _losses(model, images, [(20, 10, 90, 80, -1)])
        car = _losses(model, images, [(20, 10, 90, 80, 0)])
    assert float(none["box"]) == float(none["rpn_box"]) == 0
    assert float(neutral["box"]) == float(neutral["rpn_box"]) == 0
    assert float(car["box"]) > 0
    assert float(car["rpn_box"]) > 0
    assert tuple(car) == instances.BOX_TERMS


def test_another_number_of_bands_and_options(model: FasterRCNN) -> None:
    with torch.device("meta"):
        four = build_model(FASTER_NAME, num_classes=1, in_channels=4)
        assert isinstance(four, FasterRCNN)
        assert four.backbone.body.conv1.weight.shape == (64, 4, 7, 7)
    assert model.settings["most"] == 40
    assert set(model.option_names) == set(model.settings)
