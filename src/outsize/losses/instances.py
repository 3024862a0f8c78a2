"""The five losses of Mask R-CNN: which boxes are learnt from, and each loss as the sum of its pictures' shares.

A picture's share is a sum over a number that is fixed beforehand: 256 anchors, the boxes chosen in a picture, or a
quarter of these for masks. It does not depend on the pictures beside it, and neither does what is drawn: 4 pictures at
once are 2 and 2. Shapes do not depend on pixels, and the host never waits to learn how many there are of anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.data.targets import BoxLists
from outsize.losses.loss import precise
from outsize.models.boxes import box_ious, chances, encode, is_there
from outsize.models.maskrcnn import MASK_PX, Answers
from outsize.models.proposals import BOX_WEIGHTS, PROPOSAL_WEIGHTS, BoxAnswers

BOX_TERMS = ("objectness", "rpn_box", "class", "box")
TERMS = (*BOX_TERMS, "mask")
ANCHORS = 256  # of a picture that are learnt from, at most half of them objects

_PAIRS = 1 << 23  # of boxes and objects that are compared at once: memory hardly grows with the objects
_BETA = 1 / 9  # where the loss of a box goes from square to straight
_SAMPLES = 2  # a side, of the object's mask in each cell of the mask that is learnt


@dataclass(frozen=True)
class ObjectTensors:
    """The objects of all pictures of a batch, on the device, and one without area that is none of them."""

    boxes: Tensor  # object, 4; whole pixels
    labels: Tensor  # object; from 1 on
    clipped: Tensor  # object; their shape is not their own, so nothing is learnt from them
    starts: Tensor  # object; where its mask begins
    cells: Tensor  # all masks one after the other, row by row; bytes
    keys: Tensor  # picture; what is drawn depends on it alone
    table: Tensor  # picture, place; the objects of each, filled up with the one that is none
    counts: tuple[int, ...]  # of each picture, known to the host


@dataclass(frozen=True)
class Drawn:
    """Which of many boxes are learnt from: those on objects first."""

    index: Tensor  # picture, draw
    is_used: Tensor  # picture, draw; fewer than are drawn may be there
    labels: Tensor  # picture, draw; 0: no object
    objects: Tensor  # picture, draw; the object that a box is on, or nearest to


def of_boxes(targets: BoxLists, keys: Sequence[int]) -> ObjectTensors:
    """Return boxes without masks as objects, all places of their table; nothing is learnt of neutral ones."""
    num, most = targets.labels.shape
    labels = targets.labels.flatten()
    device = labels.device
    lots = torch.tensor(tuple(keys) or (0,) * num, dtype=torch.int64)
    nothing = labels.new_zeros(0)
    return ObjectTensors(
        boxes=targets.sides.flatten(0, 1),
        labels=labels.clamp(min=0),
        clipped=labels < 0,
        starts=nothing,
        cells=nothing,
        keys=(lots.pin_memory() if device.type == "cuda" else lots).to(device, non_blocking=True),
        table=torch.arange(num * most, device=device).view(num, most),
        counts=(most,) * num,
    )


def draw_anchors(anchors: Tensor, targets: ObjectTensors) -> Drawn:
    """Draw 256 anchors of each picture."""
    matches = [
        _match(anchors, targets, number, low=0.3, high=0.7, each_has_one=True)
        for number in range(len(targets.counts))
    ]
    labels, objects = (torch.stack(each) for each in zip(*matches, strict=True))
    return _draw(labels, objects, ANCHORS, ANCHORS // 2, targets.keys)


def draw_boxes(proposals: Tensor, targets: ObjectTensors, num: int) -> tuple[Tensor, Drawn]:
    """Draw boxes of each picture from proposals and the objects themselves; at most a quarter are on objects."""
    own = targets.boxes[targets.table].to(proposals.dtype)
    candidates = torch.cat((proposals, own), dim=1)
    matches = [
        _match(boxes, targets, number, low=0.5, high=0.5, each_has_one=False)
        for number, boxes in enumerate(candidates)
    ]
    labels, objects = (torch.stack(each) for each in zip(*matches, strict=True))
    drawn = _draw(torch.where(is_there(candidates), labels, -1), objects, num, num // 4, ~targets.keys)
    boxes = candidates.take_along_dim(drawn.index[..., None], 1)
    return torch.where(drawn.is_used[..., None], boxes, 0.0), drawn


def sums(answers: Answers, targets: ObjectTensors, anchors: Drawn, boxes: Drawn) -> dict[str, Tensor]:
    """Return each loss, added up over pictures."""
    return {
        **box_sums(answers, targets, anchors, boxes),
        TERMS[-1]: _mask_share(answers, targets, boxes),
    }


def box_sums(
    answers: Answers | BoxAnswers, targets: ObjectTensors, anchors: Drawn, boxes: Drawn
) -> dict[str, Tensor]:
    """Return each loss but that of masks, added up over pictures."""
    shares = (*_anchor_shares(answers, targets, anchors), *_box_shares(answers, targets, boxes))
    return dict(zip(BOX_TERMS, shares, strict=True))


def mask_targets(boxes: Tensor, objects: Tensor, targets: ObjectTensors) -> Tensor:
    """Return the part of each box's object that lies in the box, as (box, 28, 28) of 0 and 1."""
    num_points = MASK_PX * _SAMPLES
    steps = (torch.arange(num_points, device=boxes.device, dtype=boxes.dtype) + 0.5) / num_points
    left, top, right, bottom = (each[:, None] for each in boxes.unbind(-1))
    places = targets.boxes[objects].long()
    cols = (left + (right - left) * steps).floor().long() - places[:, :1]
    rows = (top + (bottom - top) * steps).floor().long() - places[:, 1:2]
    widths, heights = places[:, 2:3] - places[:, :1], places[:, 3:] - places[:, 1:2]
    is_in_col, is_in_row = (cols >= 0) & (cols < widths), (rows >= 0) & (rows < heights)
    index = targets.starts[objects][:, None, None] + (rows * widths)[:, :, None] + cols[:, None, :]
    is_in = is_in_row[:, :, None] & is_in_col[:, None, :]
    cells = targets.cells[torch.where(is_in, index, 0)] * is_in
    shares = F.avg_pool2d(cells[:, None].to(boxes.dtype), _SAMPLES)[:, 0]
    return (shares >= 0.5).to(boxes.dtype)


def _anchor_shares(
    answers: Answers | BoxAnswers, targets: ObjectTensors, drawn: Drawn
) -> tuple[Tensor, Tensor]:
    logits = precise(answers.objectness.take_along_dim(drawn.index, 1))
    is_object = drawn.labels > 0
    found = F.binary_cross_entropy_with_logits(logits, is_object.to(logits.dtype), reduction="none")
    anchors = answers.anchors[drawn.index].to(logits.dtype)
    offsets = precise(answers.offsets.take_along_dim(drawn.index[..., None], 1))
    moved = _moved(offsets, anchors, targets, drawn, PROPOSAL_WEIGHTS)
    return (
        torch.where(drawn.is_used, found, 0.0).sum() / ANCHORS,
        torch.where(drawn.is_used & is_object, moved, 0.0).sum() / ANCHORS,
    )


def _box_shares(answers: Answers | BoxAnswers, targets: ObjectTensors, drawn: Drawn) -> tuple[Tensor, Tensor]:
    logits = precise(answers.classes)
    num_boxes = logits.shape[1]
    found = F.cross_entropy(logits.transpose(1, 2), drawn.labels, reduction="none")
    own = drawn.labels[..., None, None].expand(-1, -1, 1, 4)
    offsets = precise(answers.box_offsets.take_along_dim(own, 2)[:, :, 0])
    moved = _moved(offsets, answers.boxes, targets, drawn, BOX_WEIGHTS)
    return (
        torch.where(drawn.is_used, found, 0.0).sum() / num_boxes,
        torch.where(drawn.is_used & (drawn.labels > 0), moved, 0.0).sum() / num_boxes,
    )


def _mask_share(answers: Answers, targets: ObjectTensors, drawn: Drawn) -> Tensor:
    num_masks = answers.masks.shape[1]  # of the first boxes
    labels = drawn.labels[:, :num_masks]
    own = precise(answers.masks.take_along_dim(labels[..., None, None, None], 2)[:, :, 0]).flatten(0, 1)
    boxes, objects = answers.boxes[:, :num_masks].flatten(0, 1), drawn.objects[:, :num_masks].flatten()
    wanted = mask_targets(boxes, objects, targets).to(own.dtype)
    each = F.binary_cross_entropy_with_logits(own, wanted, reduction="none").mean((1, 2))
    is_learnt = (drawn.is_used[:, :num_masks] & (labels > 0)).flatten()
    return torch.where(is_learnt, each, 0.0).sum() / num_masks


def _moved(
    offsets: Tensor, references: Tensor, targets: ObjectTensors, drawn: Drawn, weights: Sequence[float]
) -> Tensor:
    """Return how far offsets are from those to the objects, for each box."""
    wanted = encode(targets.boxes[drawn.objects].to(offsets.dtype), references, weights)
    return F.smooth_l1_loss(offsets, wanted, beta=_BETA, reduction="none").sum(-1)


@torch.no_grad()
def _match(
    boxes: Tensor, targets: ObjectTensors, number: int, *, low: float, high: float, each_has_one: bool
) -> tuple[Tensor, Tensor]:
    """Return label and object of each box of a picture: 0 for no object, -1 for boxes that nothing is learnt from.

    With `each_has_one`, the boxes nearest to an object are on it, however far they are.
    """
    first, num_objects = sum(targets.counts[:number]), targets.counts[number]
    if not num_objects:
        nothing = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
        return nothing, nothing
    own = targets.boxes[first : first + num_objects].to(boxes.dtype)
    parts = boxes.split(max(1, _PAIRS // num_objects))
    found = []
    nearest = own.new_zeros(num_objects)
    for part in parts:
        ious = box_ious(part, own)
        found.append(ious.max(1))
        nearest = torch.maximum(nearest, ious.amax(0))
    best, objects = (torch.cat(each) for each in zip(*found, strict=True))
    objects = objects + first
    is_on = best >= high
    if each_has_one:
        least = (nearest - 1e-6).clamp(min=1e-4)
        is_on = is_on | torch.cat([(box_ious(part, own) >= least).any(1) for part in parts])
    labels = torch.where(is_on, targets.labels[objects], torch.where(best < low, 0, -1))
    unclear = targets.clipped[objects] & ((best >= min(low, 0.3)) | is_on)
    return torch.where(unclear, -1, labels), objects


@torch.no_grad()
def _draw(labels: Tensor, objects: Tensor, num: int, most: int, keys: Tensor) -> Drawn:
    """Draw `num` of each picture (picture, box), at most `most` of them on objects."""
    lots = chances(keys, labels.shape[1])
    on, has_object = _first(torch.where(labels > 0, lots, -1), most)
    off, has_none = _first(torch.where(labels == 0, lots, -1), num)
    rank = torch.arange(off.shape[1], device=labels.device)
    has_none = has_none & (rank < num - has_object.sum(1, keepdim=True))
    is_used, index = torch.cat((has_object, has_none), dim=1), torch.cat((on, off), dim=1)
    order = (~is_used).to(torch.uint8).argsort(dim=1, stable=True)[:, :num]  # those on objects stay first
    index, is_used = (_filled(each.take_along_dim(order, 1), num) for each in (index, is_used))
    own_labels, own_objects = (each.take_along_dim(index, 1) for each in (labels, objects))
    return Drawn(index, is_used, torch.where(is_used, own_labels, 0), torch.where(is_used, own_objects, 0))


def _first(lots: Tensor, num: int) -> tuple[Tensor, Tensor]:
    values, index = lots.topk(min(num, lots.shape[1]), dim=1)
    return index, values >= 0


def _filled(values: Tensor, num: int) -> Tensor:
    missing = num - values.shape[1]
    return F.pad(values, (0, missing)) if missing > 0 else values
