"""What a loss is: a sum over labels and a count, and the class weights that both of them use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from outsize.data.sample import IGNORE

Weights = tuple[float, ...] | None  # one for each class; None counts all classes alike
WeightsByStride = Mapping[int, Weights]  # where phases that reduce labels otherwise weigh them otherwise


@dataclass(frozen=True)
class Loss:
    """A sum and its count, kept apart so that a batch may be split between samples and added up again.

    `local` says that each pixel's part depends on that pixel alone. Then a sample may be split too: tiles of
    one image add up. Where it is False, tiles give another loss than the whole image.
    """

    sum: Callable[..., Tensor]  # logits, labels, and with `edges`: edge logits, edges -> scalar
    count: Callable[..., float]  # labels, and with `edges`: edges -> what the sum is divided by
    local: bool
    edges: bool = False  # it is also about where classes meet: edges (sample, row, column), 1 or 0


def of_stride(weights: Weights | WeightsByStride, stride: int) -> Weights:
    """Return the weights for labels that are reduced by a stride."""
    return weights[stride] if isinstance(weights, Mapping) else weights


def precise(logits: Tensor) -> Tensor:
    """Return at least float32: a bf16 sum over a million pixels would lose most of its digits."""
    return logits if logits.dtype == torch.float64 else logits.float()


def count_pixels(labels: Tensor, weights: Weights) -> float:
    """Add up the weights of the labelled pixels; without weights, count them."""
    if weights is None and labels.device.type == "cpu":
        return float(np.count_nonzero(labels.numpy() != IGNORE))  # several times as fast as torch's
    if weights is None:
        return float(torch.count_nonzero(labels != IGNORE))
    # whole numbers first: the sum does not depend on the order of the pixels
    num_px = torch.bincount(labels.flatten().long(), minlength=IGNORE + 1)[: len(weights)].tolist()
    return float(sum(weight * num for weight, num in zip(weights, num_px, strict=True)))


# Kept on the device: copying even a few numbers there makes the host wait for all work queued before.
@lru_cache(maxsize=64)
def weights_on(weights: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return one weight for each label value, 0 for those that are no class."""
    with torch.inference_mode(False):
        return torch.tensor((*weights, *[0.0] * (IGNORE + 1 - len(weights))), dtype=dtype, device=device)
