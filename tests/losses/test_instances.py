"""The five losses: which boxes are drawn, what clipped objects teach, masks in the frame of a box, known sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from outsize.data.object import Object
from outsize.losses.instances import (
    ANCHORS,
    TERMS,
    Drawn,
    ObjectTensors,
    draw_anchors,
    draw_boxes,
    mask_targets,
    sums,
)
from outsize.models.boxes import encode
from outsize.models.maskrcnn import Answers
from outsize.models.proposals import BOX_WEIGHTS
from outsize.tasks.instances.terms import to_targets
from outsize.tiles.window import Window

_CPU = torch.device("cpu")


def _object(
    row: int, col: int, height: int, width: int, *, clipped: bool = False, class_id: int = 0
) -> Object:
    return Object(
        class_id, Window(row, col, height, width), np.ones((height, width), np.bool_), clipped=clipped
    )


def _anchors() -> torch.Tensor:
    corners = torch.cartesian_prod(torch.arange(0.0, 100, 4), torch.arange(0.0, 100, 4))
    return torch.cat((corners, corners + 16), 1)


def _targets(*objects: Object) -> ObjectTensors:
    return to_targets((objects,), (3,), _CPU)


def _draw_boxes(proposals: torch.Tensor, targets: ObjectTensors, num: int) -> tuple[torch.Tensor, Drawn]:
    """Draw from the one picture there is."""
    boxes, drawn = draw_boxes(proposals[None], targets, num)
    return boxes[0], _only(drawn)


def _draw_anchors(anchors: torch.Tensor, targets: ObjectTensors) -> Drawn:
    return _only(draw_anchors(anchors, targets))


def _only(drawn: Drawn) -> Drawn:
    return Drawn(drawn.index[0], drawn.is_used[0], drawn.labels[0], drawn.objects[0])


def test_objects_come_first_and_are_never_more_than_their_share() -> None:
    targets = _targets(_object(20, 20, 16, 16), _object(60, 40, 16, 16, class_id=1))
    proposals = torch.cat((_anchors(), targets.boxes[:2].repeat(30, 1)))
    boxes, drawn = _draw_boxes(proposals, targets, 64)
    on = drawn.labels > 0
    assert boxes.shape == (64, 4)
    assert int(on.sum()) == 16
    assert on[:16].all()
    assert drawn.is_used.all()
    assert set(drawn.labels[on].tolist()) == {1, 2}
    assert torch.equal(drawn.objects[on], drawn.labels[on] - 1)


def test_where_there_are_too_few_the_rest_is_not_used() -> None:
    targets = _targets(_object(20, 20, 16, 16))
    boxes, drawn = _draw_boxes(torch.zeros(50, 4), targets, 32)
    assert drawn.is_used.tolist() == [True] + [False] * 31  # the object itself, and boxes without area
    assert drawn.labels.tolist() == [1] + [0] * 31
    assert boxes[1:].abs().sum() == 0


def test_an_object_has_an_anchor_however_far_it_is() -> None:
    drawn = _draw_anchors(_anchors(), _targets(_object(3, 3, 4, 90)))
    assert (drawn.labels > 0).any()
    assert len(drawn.index) == ANCHORS


def test_a_clipped_object_teaches_neither_that_it_is_there_nor_that_it_is_not() -> None:
    targets = _targets(_object(20, 20, 16, 16, clipped=True))
    _, drawn = _draw_boxes(targets.boxes[:1].repeat(9, 1), targets, 32)
    assert not drawn.is_used.any()
    drawn = _draw_anchors(_anchors(), targets)
    assert not (drawn.labels > 0).any()
    near = (_anchors()[drawn.index[drawn.is_used]] - targets.boxes[:1]).abs().amax(1) < 4
    assert not near.any()


def test_a_picture_without_objects_teaches_that_there_are_none() -> None:
    _, drawn = _draw_boxes(_anchors(), _targets(), 32)
    assert drawn.is_used.all()
    assert not drawn.labels.any()


def test_masks_are_seen_from_their_box() -> None:
    mask = np.zeros((20, 10), np.bool_)
    mask[:10] = True  # the upper half
    both = (_object(0, 0, 5, 5), Object(0, Window(30, 50, 20, 10), mask))
    boxes = torch.tensor([[50.0, 30, 60, 50], [50, 30, 60, 40], [45, 30, 55, 50], [0, 0, 5, 5]])
    found = mask_targets(boxes, torch.tensor([1, 1, 1, 0]), _targets(*both))
    assert found[0, :14].all()
    assert not found[0, 14:].any()
    assert found[1].all()
    assert not found[2, :, :14].any()  # left of the object
    assert found[2, :14, 14:].all()
    assert found[3].all()


def test_sums_are_over_fixed_numbers() -> None:
    targets = _targets(_object(20, 20, 16, 16), _object(60, 40, 16, 16, class_id=1))
    anchors = _anchors()
    candidates = torch.cat((anchors, targets.boxes[:2].repeat(9, 1)))
    boxes, on_boxes = draw_boxes(candidates[None], targets, 64)
    on_anchors = draw_anchors(anchors, targets)
    nothing = torch.zeros
    answers = Answers(
        anchors,
        nothing(1, len(anchors)),
        nothing(1, len(anchors), 4),
        boxes,
        nothing(1, 64, 3),
        nothing(1, 64, 3, 4),
        nothing(1, 16, 3, 28, 28),
        None,
    )
    found = sums(answers, targets, on_anchors, on_boxes)
    assert tuple(found) == TERMS
    num_masks = int((on_boxes.labels > 0).sum())
    assert float(found["objectness"]) == pytest.approx(np.log(2))  # each anchor, over 256
    assert float(found["class"]) == pytest.approx(np.log(3))
    assert float(found["mask"]) == pytest.approx(np.log(2) * num_masks / 16)
    on = on_boxes.labels > 0
    offsets = encode(targets.boxes[on_boxes.objects[on]], boxes[on], BOX_WEIGHTS)
    expected = F.smooth_l1_loss(offsets, torch.zeros_like(offsets), beta=1 / 9, reduction="sum") / 64
    assert float(found["box"]) == pytest.approx(float(expected))
    assert float(expected) > 0
