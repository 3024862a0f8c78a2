"""The Triton kernels of `cross_entropy`: a pixel's scores are read once forward and once backward, and never kept."""

from __future__ import annotations

from functools import cache

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor

from outsize.strategies.kernels.launch import launch

_TILE = 2048  # scores that a program holds at once
_NO_LABEL = tl.constexpr(255)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _read(  # type: ignore[no-untyped-def]
    scores,
    labels,
    weights,
    num_px,
    num_classes,
    high: tl.constexpr,
    wide: tl.constexpr,
    weighted: tl.constexpr,
):
    pixel = tl.program_id(0).to(tl.int64) * high + tl.arange(0, high)
    label = tl.load(labels + pixel, mask=pixel < num_px, other=_NO_LABEL).to(tl.int32)
    each = tl.arange(0, wide)
    mask = (pixel < num_px)[:, None] & (each < num_classes)[None, :]
    at = pixel[:, None] * num_classes + each[None, :]
    score = tl.load(scores + at, mask=mask, other=float("-inf")).to(tl.float32)
    score = tl.where(each[None, :] < num_classes, tl.where(mask, score, 0.0), float("-inf"))
    away = score - tl.max(score, 1)[:, None]
    weight = tl.where(label == _NO_LABEL, 0.0, 1.0)
    if weighted:
        weight = tl.where(label == _NO_LABEL, 0.0, tl.load(weights + label))
    # a label that is no class and no gap either shall be seen in the loss
    weight = tl.where((label >= num_classes) & (label != _NO_LABEL), float("nan"), weight)
    return at, mask, label, each, away, tl.log(tl.sum(tl.exp(away), 1)), weight


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sums(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    scores, labels, weights, out, num_px, num_classes,
    high: tl.constexpr, wide: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    _, _, label, each, away, level, weight = _read(
        scores, labels, weights, num_px, num_classes, high, wide, weighted
    )
    own = tl.sum(tl.where(each[None, :] == label[:, None], away, 0.0), 1)
    part = tl.where(weight == 0, 0.0, weight * (level - own))
    tl.store(out + tl.program_id(0), tl.sum(part, 0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gradient(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - as a kernel has
    grad, scores, labels, weights, out, num_px, num_classes,
    high: tl.constexpr, wide: tl.constexpr, weighted: tl.constexpr,
):  # fmt: skip
    at, mask, label, each, away, level, weight = _read(
        scores, labels, weights, num_px, num_classes, high, wide, weighted
    )
    share = tl.exp(away - level[:, None]) - tl.where(each[None, :] == label[:, None], 1.0, 0.0)
    found = share * (weight * tl.load(grad))[:, None]
    found = tl.where((weight == 0)[:, None], 0.0, found)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=mask)


def total(scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum over labelled pixels; scores lie channels last."""
    num_px, num_classes, high, wide, grid = _cut(scores.shape)
    parts = torch.empty(grid[0], device=scores.device)
    weighted = weights is not None
    launch(
        _sums, (scores.shape, scores.dtype, weighted), grid, scores, labels, labels if weights is None else weights,
        parts, num_px, num_classes, high, wide, weighted,
    )  # fmt: skip
    return parts.sum()


def gradient(grad: Tensor, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return the gradient of the scores."""
    num_px, num_classes, high, wide, grid = _cut(scores.shape)
    out = torch.empty_like(scores)
    weighted = weights is not None
    launch(
        _gradient, (scores.shape, scores.dtype, grad.dtype, weighted), grid, grad, scores, labels,
        labels if weights is None else weights, out, num_px, num_classes, high, wide, weighted,
    )  # fmt: skip
    return out


@cache
def _cut(shape: torch.Size) -> tuple[int, int, int, int, tuple[int]]:
    num_classes = shape[1]
    num_px = shape.numel() // num_classes
    wide = triton.next_power_of_2(num_classes)
    high = max(1, _TILE // wide)
    return num_px, num_classes, high, wide, (-(-num_px // high),)
