"""The two places of a detector whose shapes depend on pixels, and what stands for them where there are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Unsteady:
    """How boxes are thinned out, and how many of them each level of a pyramid gets."""

    keep: Callable[..., Tensor]  # boxes, scores, groups, iou, limit -> indices, best first
    share_out: Callable[[Tensor, int], list[int]]  # level of each box, number of levels -> boxes on each


def _keep(boxes: Tensor, scores: Tensor, groups: Tensor, *, iou: float, limit: int, least: float) -> Tensor:
    from torchvision.ops import batched_nms  # type: ignore[import-untyped]

    found = torch.nonzero(scores > least).squeeze(1)
    kept: Tensor = batched_nms(boxes[found], scores[found], groups[found], iou)
    return found[kept[:limit]]


def _share_out(levels: Tensor, num_levels: int) -> list[int]:
    counts: list[int] = torch.bincount(levels, minlength=num_levels).tolist()
    return counts


def _keep_most(_: Tensor, scores: Tensor, *__: Tensor, limit: int, **___: float) -> Tensor:
    return torch.arange(min(limit, len(scores)), device=scores.device)


def _share_out_evenly(levels: Tensor, num_levels: int) -> list[int]:
    each, more = divmod(len(levels), num_levels)
    return [each + (number < more) for number in range(num_levels)]


REAL = Unsteady(_keep, _share_out)
ON_SHAPES = Unsteady(_keep_most, _share_out_evenly)
"""As many boxes as there may be, which is the most memory: for a model and a batch that are shapes alone."""
