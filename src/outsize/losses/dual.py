"""The dual loss of G-SCNN: edges that predicted classes make, against those that labels make.

Both are maps of each class: smoothed, then how much they change from pixel to pixel, as a share of the most they
change in the image. Where this differs from the release:

- maps are smoothed and their changes taken: in the release both steps return what they are given;
- the largest change is that of each image, not that of all images on a device;
- smoothing passes over pixels without a label and those outside of the image: in the release they are a class;
- a change is one from 1e-4 of the largest on, not from 1e-8 on, which is less than float32 rounds by.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outsize.data.sample import IGNORE
from outsize.losses.loss import precise

_TEMPERATURE = 0.5  # of the softmax: the lower, the more it is all of one class
_BOX_PX = 5  # a box over itself is a triangle of radius 4
_CHANGES = 1e-4


def dual_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Add up over images the mean of |difference| where prediction changes, and where labels do, each by a half."""
    labelled = (labels != IGNORE)[:, None]
    scores = precise(logits)
    mask = labelled.to(scores.dtype)
    cover = _smooth(mask).clamp_min(1e-6)
    predicted = _changes(_smooth(_drawn(scores) * mask) / cover, labelled)
    with torch.no_grad():
        classes = torch.arange(scores.shape[1], device=labels.device, dtype=labels.dtype)
        is_label = (labels[:, None] == classes[:, None, None]).to(scores.dtype)
        actual = _changes(_smooth(is_label) / cover, labelled)
    apart = (predicted - actual).abs()
    found = _mean_where(apart, predicted.detach() > _CHANGES) + _mean_where(apart, actual > _CHANGES)
    return found.sum() / 2


def _drawn(scores: Tensor) -> Tensor:
    """Return shares as if a class had been drawn by its probability, but smooth: softmax with Gumbel's noise."""
    noise = -torch.empty_like(scores).exponential_().clamp_min_(1e-10).log_()
    return ((scores + noise) / _TEMPERATURE).softmax(1)


def _smooth(maps: Tensor) -> Tensor:
    once = functional.avg_pool2d(maps, _BOX_PX, stride=1, padding=_BOX_PX // 2)
    return functional.avg_pool2d(once, _BOX_PX, stride=1, padding=_BOX_PX // 2)


def _changes(maps: Tensor, labelled: Tensor) -> Tensor:
    """Return how much maps change around labelled pixels, as a share of the most in each image; 0 at its border."""
    down = functional.pad(maps[:, :, 2:] - maps[:, :, :-2], (0, 0, 1, 1))
    right = functional.pad(maps[..., 2:] - maps[..., :-2], (1, 1))
    # not 0, where a root has no slope
    size = (down.square() + right.square()).clamp_min(1e-12).sqrt() / 2
    size = torch.where(labelled, size, 0.0)
    return size / size.amax((1, 2, 3), keepdim=True).clamp_min(1e-4)


def _mean_where(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).sum((1, 2, 3)) / mask.sum((1, 2, 3)).clamp_min(1)
