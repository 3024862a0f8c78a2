"""What detectors of two stages share: boxes proposed from a pyramid, and features read in boxes of any level.

objectness, offsets of each anchor -> propose -> proposals -> read_boxes -> class and box of each -> likeliest
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outsize.models.boxes import clip, decode, is_there
from outsize.models.unsteady import Unsteady

BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # of a box's offsets from its proposal
PROPOSAL_WEIGHTS = (1.0, 1.0, 1.0, 1.0)
NUM_POOLED = 4  # levels that heads read; the coarsest only proposes

_USUAL_CELLS = 14  # a side of a box, on the level that it is read from


class BoxAnswers(NamedTuple):
    """What is trained: of each picture all anchors, and the boxes that were chosen."""

    anchors: Tensor  # anchor, 4
    objectness: Tensor  # picture, anchor
    offsets: Tensor  # picture, anchor, 4: from anchors
    boxes: Tensor  # picture, box, 4
    classes: Tensor  # picture, box, class: logits; class 0 is none
    box_offsets: Tensor  # picture, box, class, 4
    chosen: Any  # what whoever chose the boxes knows of them


@torch.no_grad()
def propose(
    anchors: Sequence[Tensor],
    scores: Sequence[Tensor],
    offsets: Sequence[Tensor],
    size_px: tuple[int, int],
    limit: int,
    unsteady: Unsteady,
) -> Tensor:
    """Return the likeliest boxes of each picture, as many for all; where there are fewer, boxes without area."""
    taken, best, levels = [], [], []
    for level, (own, score, offset) in enumerate(zip(anchors, scores, offsets, strict=True)):
        values, index = score.detach().topk(min(limit, score.shape[1]), dim=1)
        moved = offset.detach().take_along_dim(index[..., None], 1)
        taken.append(decode(in_full(moved), own[index], PROPOSAL_WEIGHTS))
        best.append(in_full(values))
        levels.append(torch.full(index.shape[1:], level, device=index.device))
    boxes = clip(torch.cat(taken, dim=1), *size_px)
    likely = torch.cat(best, dim=1).masked_fill(~is_there(boxes), -math.inf)
    level_of = torch.cat(levels)
    keep = partial(unsteady.keep, iou=0.7, limit=limit, least=-math.inf)
    found = boxes.new_zeros(len(boxes), limit, 4)
    for own_boxes, own_scores, place in zip(boxes, likely, found, strict=True):
        kept = own_boxes[keep(own_boxes, own_scores, level_of)]
        place[: len(kept)] = kept
    return found


def read_boxes(
    roi_heads: nn.ModuleDict,
    features: list[Tensor],
    strides: Sequence[int],
    boxes: Tensor,
    unsteady: Unsteady,
) -> tuple[Tensor, Tensor]:
    """Return class logits and offsets of boxes (picture, box, 4)."""
    read = pooled(features, strides, with_picture(boxes), 7, unsteady)
    logits, offsets = roi_heads["box_predictor"](roi_heads["box_head"](read))
    shape = tuple(boxes.shape[:2])
    return logits.unflatten(0, shape), offsets.unflatten(1, (-1, 4)).unflatten(0, shape)


def likeliest(
    proposals: Tensor,
    read: tuple[Tensor, Tensor],
    size_px: tuple[int, int],
    suppress: partial[Tensor],
) -> list[dict[str, Tensor]]:
    """Return `boxes`, `labels` from 1 on and `scores` of each picture, from what was read in its proposals."""
    logits, offsets = read
    shares = in_full(logits).softmax(-1)[..., 1:]
    boxes = clip(decode(in_full(offsets), proposals[:, :, None], BOX_WEIGHTS)[:, :, 1:], *size_px)
    shares = torch.where(is_there(proposals)[..., None] & is_there(boxes), shares, 0.0)
    labels = torch.arange(1, shares.shape[-1] + 1, device=shares.device).repeat(shares.shape[1])
    found = []
    for own_boxes, own_shares in zip(boxes.flatten(1, 2), shares.flatten(1, 2), strict=True):
        kept = suppress(own_boxes, own_shares, labels)
        found.append({"boxes": own_boxes[kept], "labels": labels[kept], "scores": own_shares[kept]})
    return found


def pooled(
    features: list[Tensor], strides: Sequence[int], boxes: Tensor, side: int, unsteady: Unsteady
) -> Tensor:
    """Read boxes (box, 5) from the levels that fit their size."""
    from torchvision.ops import roi_align  # type: ignore[import-untyped]

    with torch.no_grad():
        areas = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 2])
        usual_px = _USUAL_CELLS * strides[0]
        levels = ((areas.clamp(min=1e-6).sqrt() / usual_px).log2() + 1e-6).floor()
        levels = levels.clamp(0, NUM_POOLED - 1).long()
        order = levels.argsort(stable=True)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        counts = unsteady.share_out(levels, NUM_POOLED)
        parts = boxes[order].split(counts)
    dtype = features[0].dtype
    # bfloat16 has no room for the place of a box: 300.5 px would be 300 or 302
    read = [
        roi_align(in_full(level), part, side, spatial_scale=1 / stride, sampling_ratio=2).to(dtype)
        for level, part, stride in zip(features[:NUM_POOLED], parts, strides[:NUM_POOLED], strict=True)
    ]
    return torch.cat(read).index_select(0, back)


def with_picture(boxes: Tensor) -> Tensor:
    """Put the number of its picture before each box: (picture, box, 4) -> (box, 5)."""
    numbers = torch.arange(len(boxes), device=boxes.device, dtype=boxes.dtype)
    return torch.cat((numbers[:, None, None].expand(*boxes.shape[:2], 1), boxes), dim=2).flatten(0, 1)


def by_anchor(values: Tensor, num_ratios: int) -> Tensor:
    """Bring (picture, ratio x number, row, column) to (picture, anchor, number)."""
    by_ratio: Tensor = values.unflatten(1, (num_ratios, -1))
    return by_ratio.permute(0, 3, 4, 1, 2).flatten(1, 3)


def in_full(values: Tensor) -> Tensor:
    """Return values as float32, or as they are where they have more digits."""
    return values if values.dtype == torch.float64 else values.float()
