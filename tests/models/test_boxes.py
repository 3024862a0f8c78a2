"""Boxes: anchors as torchvision's, offsets there and back, IoU, and chance that depends on a key alone."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou

from outsize.models.boxes import anchors_of, box_ious, chances, clip, decode, encode, is_there

_CPU = torch.device("cpu")


def test_anchors_are_those_that_published_weights_were_trained_with() -> None:
    shapes = ((16, 24), (8, 12), (4, 6))
    sizes, ratios = (32.0, 64.0, 128.0), (0.5, 1.0, 2.0)
    theirs = AnchorGenerator(tuple((int(size),) for size in sizes), (ratios,) * 3)
    pictures = ImageList(torch.zeros(1, 3, 64, 96), [(64, 96)])
    expected = theirs(pictures, [torch.zeros(1, 1, *shape) for shape in shapes])[0]
    ours = anchors_of(shapes, (4, 8, 16), sizes, ratios, _CPU)
    assert torch.equal(torch.cat(ours), expected)


def _boxes(num: int, seed: int) -> torch.Tensor:
    corners = torch.rand(num, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 50
    sides = (
        torch.rand(num, 2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64) * 40 + 2
    )
    return torch.cat((corners, corners + sides), 1)


def test_offsets_lead_back_to_the_box() -> None:
    boxes, references = _boxes(50, 0), _boxes(50, 7)
    weights = (10.0, 10.0, 5.0, 5.0)
    back = decode(encode(boxes, references, weights), references, weights)
    assert torch.allclose(back, boxes, atol=1e-9)


def test_an_offset_that_is_not_trained_does_not_overflow() -> None:
    wild = decode(torch.full((1, 4), 1e4), torch.tensor([[0.0, 0.0, 8.0, 8.0]]), (1.0,) * 4)
    assert torch.isfinite(wild).all()


def test_iou_is_torchvisions_and_0_for_what_is_not_there() -> None:
    boxes, others = _boxes(30, 3), _boxes(20, 9)
    assert torch.allclose(box_ious(boxes, others), box_iou(boxes, others))
    nothing = torch.zeros(1, 4)
    assert box_ious(nothing, nothing).item() == 0
    assert not is_there(nothing).any()
    assert is_there(boxes).all()


def test_boxes_end_where_their_picture_does() -> None:
    assert clip(torch.tensor([[-3.0, -4.0, 99.0, 50.0]]), 40, 60).tolist() == [[0.0, 0.0, 60.0, 40.0]]


def test_chance_is_of_the_key_alone() -> None:
    keys = torch.tensor([5, 6])
    assert torch.equal(chances(keys, 1000)[:, :10], chances(keys, 10))
    assert torch.equal(chances(keys[1:], 10)[0], chances(keys, 10)[1])
    assert not torch.equal(*chances(keys, 10))


@pytest.mark.parametrize("key", [0, 1, ~1, (3 << 56) ^ (7 << 32) ^ 12])
def test_chance_is_fair(key: int) -> None:
    drawn = chances(torch.tensor([key]), 100_000)[0]
    assert drawn.min() >= 0
    assert len(drawn.unique()) > 99_990
    assert float(drawn.double().mean()) / 2**40 == pytest.approx(0.5, abs=0.005)
    neighbours = torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])).double())[0, 1]
    assert abs(float(neighbours)) < 0.02
