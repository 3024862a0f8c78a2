"""Mask R-CNN: torchvision's answers on torchvision's weights, caps, options, weights to start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.tasks.instances.pictures import STATISTICS, draw, small_model
from torchvision.models.detection import MaskRCNN as Theirs

from outsize.errors import JobError, ModelError
from outsize.models import build_model, build_with_notes
from outsize.models.maskrcnn import MaskRCNN
from outsize.models.pretrained.detectors import start_detector
from outsize.models.proposals import pooled
from outsize.models.unsteady import ON_SHAPES, REAL
from outsize.tasks.instances.finding.objects import are_sound
from outsize.tasks.instances.terms import make_loss_terms
from outsize.train.phases import set_trainable

_STRIDES = (4, 8, 16, 32, 64)
_NARROW = {"backbone": "resnet18", "width": 32, "head_width": 64}


def _theirs(ours: MaskRCNN) -> Theirs:
    """Build torchvision's own with the same weights, without its resizing."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

    model = Theirs(
        ours.backbone,
        rpn_anchor_generator=AnchorGenerator(
            tuple((int(px),) for px in ours.anchor_px), ((0.5, 1.0, 2.0),) * 5
        ),
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=200,
        box_head=TwoMLPHead(32 * 49, 64),
        box_predictor=FastRCNNPredictor(64, 3),
        mask_head=MaskRCNNHeads(32, (32,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(32, 32, 3),
        min_size=64,
        max_size=96,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
    )
    missing = model.load_state_dict(ours.state_dict(), strict=True)
    assert not missing.missing_keys
    model.transform.postprocess = lambda found, *_: found  # type: ignore[method-assign]
    return model.eval()


@pytest.mark.parametrize("finest_px", [4, 2])
def test_names_and_answers_are_torchvisions(finest_px: int) -> None:
    ours = small_model("frozen", finest_px=finest_px).eval()
    pictures = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        found, expected = ours(pictures), _theirs(ours)(list(pictures))
    assert isinstance(found, list)
    for one, other in zip(found, expected, strict=True):
        assert len(one["scores"]) > 20
        assert torch.equal(one["labels"], other["labels"])
        for key in ("scores", "boxes", "masks"):
            assert torch.allclose(one[key], other[key], atol=1e-3), key


def test_numbers_beyond_float16_are_told() -> None:
    model = small_model("batch").eval()
    pictures = torch.randn(2, 3, 64, 64)
    pictures[1] = 1e30
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        found = model(pictures)
    assert [bool(each["sound"]) for each in found] == [True, False]
    assert not are_sound(found)
    assert are_sound(found[:1])
    assert are_sound([{}])


def test_caps_grow_with_the_picture() -> None:
    model = small_model("frozen", least_proposals=100, least_detections=10)
    assert (model.most_proposals(64, 64), model.most_detections(64, 64)) == (100, 10)
    assert (model.most_proposals(1000, 2000), model.most_detections(1000, 2000)) == (8000, 3000)


def test_a_picture_of_any_size_is_not_resized() -> None:
    model = small_model("batch").eval()
    with torch.no_grad():
        found = model(torch.randn(1, 3, 75, 101))
    boxes = found[0]["boxes"]
    assert float(boxes[:, 0::2].max()) <= 101
    assert float(boxes[:, 1::2].max()) <= 75


def test_all_options_are_told_so_that_the_card_has_them() -> None:
    model = build_model("maskrcnn", num_classes=1, in_channels=5, **_NARROW)
    assert model.settings["anchor_px"] == (32, 64, 128, 256, 512)  # type: ignore[index]
    assert build_model("maskrcnn", num_classes=1, in_channels=5, **model.settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"backbone": "resnet20"}, "resnet50"),
        ({"norm": "layer"}, "frozen"),
        ({"anchor_px": [8, 16]}, "5 sizes"),
        ({"anchors": [8, 16]}, "anchor_px"),
        ({"rois_per_image": 2}, "at least 4"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], what: str) -> None:
    with pytest.raises(ModelError, match=what):
        build_model("maskrcnn", num_classes=1, in_channels=3, **options)


@pytest.mark.parametrize(("norm", "num_params"), [("batch", 62), ("frozen", 22), ("group", 62)])
def test_a_frozen_norm_has_nothing_to_train(norm: str, num_params: int) -> None:
    body = [name for name, _ in small_model(norm).named_parameters() if name.startswith("backbone.body")]
    assert len(body) == num_params - 2  # the one that classified pictures is gone


def test_stages_are_unfrozen_by_name() -> None:
    model = small_model("batch")
    trained = {}
    for part in ("heads", "upper"):
        set_trainable(model, (part,))
        trained[part] = {name for name, each in model.named_parameters() if each.requires_grad}
    assert not any(name.startswith("backbone.body") for name in trained["heads"])
    assert {name.rsplit(".")[2] for name in trained["upper"] - trained["heads"]} == {"layer3", "layer4"}


def test_a_stage_that_is_not_there_is_refused() -> None:
    with pytest.raises(JobError, match="heads, upper"):
        set_trainable(small_model("frozen"), ("lower",))


def test_a_trunk_from_a_file_is_spread_to_bands_by_name(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    torch.manual_seed(1)
    given = resnet18(weights=None).state_dict()
    torch.save(given, tmp_path / "trunk.pth")
    options = {**_NARROW, "weights": str(tmp_path / "trunk.pth")}
    bands = ("red", "green", "blue", "nir")
    model, notes = build_with_notes("maskrcnn", num_classes=1, in_channels=4, bands=bands, **options)
    mine = model.state_dict()
    assert torch.equal(mine["backbone.body.layer1.0.conv1.weight"], given["layer1.0.conv1.weight"])
    kernels = mine["backbone.body.conv1.weight"]
    assert torch.allclose(kernels.sum(1), given["conv1.weight"].sum(1), atol=1e-6)
    assert "dropped (backbone.body.fc.weight" in notes[0]
    with pytest.raises(ModelError, match="name"):
        build_with_notes("maskrcnn", num_classes=1, in_channels=4, **options)
    with pytest.raises(ModelError, match="check the path"):
        build_with_notes(
            "maskrcnn", num_classes=1, in_channels=3, bands=bands[:3], **{**options, "weights": "nowhere"}
        )


def test_weights_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    torch.save({"somewhere.weight": torch.zeros(3)}, tmp_path / "other.pth")
    model = small_model("batch")
    with pytest.raises(ModelError, match="fits nothing"):
        start_detector(
            model,
            str(tmp_path / "other.pth"),
            ("red", "green", "blue"),
            lambda: build_model("maskrcnn", num_classes=3, in_channels=4, **_NARROW),
        )
    assert start_detector(model, "none", (), lambda: model) == ()


def test_boxes_that_overlap_are_thinned_out_within_their_group() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 10, 10], [1, 0, 10, 10], [50, 50, 60, 60]])
    scores, groups = torch.tensor([0.5, 0.9, 0.8, 0.01]), torch.tensor([0, 0, 1, 0])
    kept = REAL.keep(boxes, scores, groups, iou=0.5, limit=9, least=0.1)
    assert kept.tolist() == [1, 2]
    assert REAL.keep(boxes, scores, groups, iou=0.5, limit=1, least=0.1).tolist() == [1]
    assert len(ON_SHAPES.keep(boxes, scores, groups, iou=0.5, limit=3, least=0.1)) == 3
    assert REAL.share_out(torch.tensor([2, 0, 2]), 4) == [1, 0, 2, 0]
    assert ON_SHAPES.share_out(torch.tensor([2, 0, 2]), 2) == [2, 1]


def test_narrow_numbers_do_not_move_boxes() -> None:
    rows = torch.arange(128.0).view(1, 1, 128, 1).expand(1, 2, 128, 128)
    features = [F.avg_pool2d(rows, 2**level) for level in range(4)]
    boxes = torch.tensor([[0, 300.6, 301.3, 345.9, 347.2], [0, 10.2, 401.7, 130.4, 509.9]])
    with torch.autocast("cpu", torch.bfloat16):
        narrow = pooled([each.bfloat16() for each in features], _STRIDES, boxes, 7, REAL)
    wide = pooled(features, _STRIDES, boxes, 7, REAL)
    assert narrow.dtype == torch.bfloat16
    assert torch.allclose(narrow.float(), wide, atol=0.5)  # of a cell, by the features' own rounding


def test_a_step_in_bf16_is_near_that_in_float32() -> None:
    model, batch = small_model("group").train(), draw(2)
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            terms = make_loss_terms("", STATISTICS)(model, batch)
        assert all(each.dtype == torch.float32 for each in terms.values())
        losses.append(float(sum(terms.values()).detach()))  # type: ignore[union-attr]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
