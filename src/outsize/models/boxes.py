"""Boxes as tensors: the anchors of a picture, boxes as offsets from others and back, and what is random about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

# A box is left, top, right, bottom in pixels, as torchvision has it: the one place where columns come first.

_MOST_GROWTH = math.log(1000 / 16)  # of a side, by one offset: what is not yet trained must not overflow
_LEAST_PX = 1e-2  # of the sides of a box that is there
_MULTIPLIERS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # odd, of splitmix64


def anchors_of(
    shapes: Sequence[tuple[int, int]],
    strides: Sequence[int],
    sizes_px: Sequence[float | Sequence[float]],
    ratios: Sequence[float],
    device: torch.device,
) -> list[Tensor]:
    """Return the anchors of each level of a pyramid, (row, column, ratio, size) in this order: (anchor, 4).

    `ratios` are height over width; each anchor has the area of a square of its level's size, or of one of its sizes.
    """
    found = []
    for (height, width), stride, sizes in zip(shapes, strides, sizes_px, strict=True):
        of_level = (sizes,) if isinstance(sizes, int | float) else tuple(sizes)
        rows = torch.arange(height, device=device, dtype=torch.float32) * stride
        cols = torch.arange(width, device=device, dtype=torch.float32) * stride
        per_ratio = []
        for ratio, size_px in product(ratios, of_level):
            # rounded, as those that published weights were trained with
            half_height, half_width = (
                round(size_px * math.sqrt(ratio) / 2),
                round(size_px / math.sqrt(ratio) / 2),
            )
            sides = (
                (cols - half_width).expand(height, width),
                (rows - half_height)[:, None].expand(height, width),
                (cols + half_width).expand(height, width),
                (rows + half_height)[:, None].expand(height, width),
            )
            per_ratio.append(torch.stack(sides, dim=-1))
        found.append(torch.stack(per_ratio, dim=2).reshape(-1, 4))
    return found


def encode(boxes: Tensor, references: Tensor, weights: Sequence[float]) -> Tensor:
    """Return boxes as offsets from references: centre in sides of the reference, logarithm of the sides."""
    col, row, width, height = _centres(references)
    own_col, own_row, own_width, own_height = _centres(boxes)
    offsets = (
        (own_col - col) / width,
        (own_row - row) / height,
        (own_width / width).log(),
        (own_height / height).log(),
    )
    return torch.stack([each * weight for each, weight in zip(offsets, weights, strict=True)], dim=-1)


def decode(offsets: Tensor, references: Tensor, weights: Sequence[float]) -> Tensor:
    """Turn offsets from references back into boxes."""
    col, row, width, height = _centres(references)
    by_col, by_row, by_width, by_height = (
        each / weight for each, weight in zip(offsets.unbind(-1), weights, strict=True)
    )
    col, row = col + by_col * width, row + by_row * height
    half_width = width * by_width.clamp(max=_MOST_GROWTH).exp() / 2
    half_height = height * by_height.clamp(max=_MOST_GROWTH).exp() / 2
    return torch.stack((col - half_width, row - half_height, col + half_width, row + half_height), dim=-1)


def clip(boxes: Tensor, height: int, width: int) -> Tensor:
    """Cut boxes at the borders of their picture."""
    left, top, right, bottom = boxes.unbind(-1)
    sides = (left.clamp(0, width), top.clamp(0, height), right.clamp(0, width), bottom.clamp(0, height))
    return torch.stack(sides, dim=-1)


def is_there(boxes: Tensor) -> Tensor:
    """Say which boxes have an area; those that only fill up a tensor have none."""
    return (boxes[..., 2] - boxes[..., 0] > _LEAST_PX) & (boxes[..., 3] - boxes[..., 1] > _LEAST_PX)


def box_ious(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the common area over the whole area, (box, other); 0 where both are empty."""
    # in place, one axis after the other: there are millions of pairs
    common = _common(boxes, others, 0)
    common *= _common(boxes, others, 1)
    whole = _areas(boxes)[:, None] + _areas(others)
    whole -= common
    common /= whole.clamp_(min=1e-9)
    return common


def chances(keys: Tensor, num: int) -> Tensor:
    """Return a number from 0 to 2^40 for each of `num` things, (key, thing): of the key alone, on every device."""
    mixed = torch.arange(num, device=keys.device, dtype=torch.int64) + (keys * _MULTIPLIERS[0])[:, None]
    for multiplier in _MULTIPLIERS:
        mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * multiplier
    return (mixed >> 24) & 0xFFFFFFFFFF


def _centres(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    left, top, right, bottom = boxes.unbind(-1)
    # what only fills up a tensor has no area, and must not make a number that is none
    return (
        (left + right) / 2,
        (top + bottom) / 2,
        (right - left).clamp(min=1e-3),
        (bottom - top).clamp(min=1e-3),
    )


def _common(boxes: Tensor, others: Tensor, axis: int) -> Tensor:
    """Return the length that boxes and others share along an axis."""
    shared = torch.minimum(boxes[:, None, axis + 2], others[:, axis + 2])
    shared -= torch.maximum(boxes[:, None, axis], others[:, axis])
    return shared.clamp_(min=0)


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
