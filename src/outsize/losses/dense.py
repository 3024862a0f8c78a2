"""The losses of detectors that answer at every anchor: which object it is on, and each loss as a sum of pictures.

A picture's share is a sum over its anchors, over the number of those on an object, which its boxes alone decide: 4
pictures at once are 2 and 2. Nothing is learnt at anchors that lie in something neutral. Shapes do not depend on boxes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.data.targets import BoxLists
from outsize.losses.loss import precise
from outsize.models.boxes import box_ious
from outsize.models.dense import STRIDES, AnchorAnswers, DenseDetector

_HIGH, _LOW = 0.5, 0.4  # IoU of an anchor that is on an object, and of one that is on none: RetinaNet
_RADIUS = 1.5  # cells from the middle of an object, in which a place is on it: FCOS
_COVERED = 0.5  # of an anchor by something neutral, where nothing is learnt
_LEAST = 1e-7

TERMS = ("classification", "box", "centredness")  # the last of FCOS alone


def sums(model: DenseDetector, answers: AnchorAnswers, targets: BoxLists) -> dict[str, Tensor]:
    """Return each loss, added up over pictures."""
    match = _inside if model.is_linear else _overlapping
    with torch.no_grad():
        matches = [match(answers, *each) for each in zip(targets.sides, targets.labels, strict=True)]
        labels, objects = (torch.stack(each) for each in zip(*matches, strict=True))
        has_one = labels > 0
        num_on = has_one.sum(1).clamp(min=1)
        own = targets.sides.take_along_dim(objects[..., None], 1)
    found = {
        "classification": _of_classes(precise(answers.logits), labels),
        "box": _of_boxes(model, answers, own, has_one),
    }
    if model.is_linear:
        found["centredness"] = _of_middles(precise(answers.centredness), answers.anchors, own, has_one)
    return {name: (each / num_on).sum() for name, each in found.items()}


def _of_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the focal loss of each picture; one logit for each class, and one that no anchor is of."""
    from torchvision.ops import sigmoid_focal_loss  # type: ignore[import-untyped]

    numbers = torch.arange(logits.shape[-1], device=logits.device)
    wanted = ((labels[..., None] == numbers) & (numbers > 0)).to(logits.dtype)
    each = sigmoid_focal_loss(logits, wanted, reduction="none").sum(-1)
    return torch.where(labels >= 0, each, 0.0).sum(1)


def _of_boxes(model: DenseDetector, answers: AnchorAnswers, own: Tensor, has_one: Tensor) -> Tensor:
    boxes = model.boxes_of(answers)
    aims = torch.where(has_one[..., None], own.to(boxes.dtype), boxes.detach())  # elsewhere without a slope
    return torch.where(has_one, _generalized_iou_loss(boxes, aims), 0.0).sum(1)


def _generalized_iou_loss(boxes: Tensor, aims: Tensor) -> Tensor:
    """Return 1 - GIoU of each box with its aim; torchvision's picks pairs by a mask, which no shape is known of.

    https://giou.stanford.edu
    """
    inner = torch.minimum(boxes[..., 2:], aims[..., 2:]) - torch.maximum(boxes[..., :2], aims[..., :2])
    outer = torch.maximum(boxes[..., 2:], aims[..., 2:]) - torch.minimum(boxes[..., :2], aims[..., :2])
    common, around = inner.clamp(min=0).prod(-1), outer.prod(-1)
    whole = sum((each[..., 2:] - each[..., :2]).prod(-1) for each in (boxes, aims)) - common
    return 1 - common / (whole + _LEAST) + (around - whole) / (around + _LEAST)


def _of_middles(logits: Tensor, anchors: Tensor, own: Tensor, has_one: Tensor) -> Tensor:
    before, behind = _to_sides(anchors, own)
    shares = torch.minimum(before, behind) / torch.maximum(before, behind).clamp(min=_LEAST)
    wanted = torch.where(has_one, shares.clamp(min=0).prod(-1).sqrt(), 0.0)
    each = F.binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype), reduction="none")
    return torch.where(has_one, each, 0.0).sum(1)


def _overlapping(answers: AnchorAnswers, sides: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return label and object of each anchor by IoU; -1 where nothing is learnt."""
    anchors = answers.anchors.to(sides.dtype)
    ious = torch.where(labels > 0, box_ious(anchors, sides), 0.0)
    best, objects = ious.max(1)
    nearest = ious.amax(0)
    is_on = (best >= _HIGH) | ((ious >= nearest - 1e-6) & (nearest > 1e-4)).any(1)
    elsewhere = torch.where(best < _LOW, _background(anchors, sides, labels), -1)
    return torch.where(is_on, labels[objects], elsewhere), objects


def _inside(answers: AnchorAnswers, sides: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return label and object of each place of FCOS: the smallest whose middle is near, at the level of its size."""
    anchors = answers.anchors.to(sides.dtype)
    strides = anchors[:, 2] - anchors[:, 0]
    places, middles = ((each[:, :2] + each[:, 2:]) / 2 for each in (anchors, sides))
    is_near = (places[:, None] - middles).abs().amax(-1) < _RADIUS * strides[:, None]
    before, behind = _to_sides(anchors[:, None], sides)
    nearest, farthest = torch.minimum(before, behind).amin(-1), torch.maximum(before, behind).amax(-1)
    lows, highs = strides * 4, strides * 8
    lows = torch.where(strides == STRIDES[0], 0.0, lows)
    highs = torch.where(strides == STRIDES[-1], torch.inf, highs)
    fits = is_near & (nearest > 0) & (farthest > lows[:, None]) & (farthest < highs[:, None]) & (labels > 0)
    areas = (sides[:, 2:] - sides[:, :2]).prod(-1)
    smallest, objects = torch.where(fits, areas, torch.inf).min(1)
    elsewhere = _background(anchors, sides, labels)
    return torch.where(smallest < torch.inf, labels[objects], elsewhere), objects


def _to_sides(anchors: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far the middles of anchors are from left and top, and from right and bottom."""
    places = (anchors[..., :2] + anchors[..., 2:]) / 2
    return places - sides[..., :2], sides[..., 2:] - places


def _background(anchors: Tensor, sides: Tensor, labels: Tensor) -> Tensor:
    """Return 0 for anchors on no object, and -1 for those that something neutral covers for the most."""
    low = torch.maximum(anchors[:, None, :2], sides[:, :2])
    shared = (torch.minimum(anchors[:, None, 2:], sides[:, 2:]) - low).clamp(min=0).prod(-1)
    areas = (anchors[:, 2:] - anchors[:, :2]).prod(-1, keepdim=True)
    return -((shared > _COVERED * areas) & (labels < 0)).any(1).to(labels.dtype)
