"""Cross-entropy of class logits, summed over labelled pixels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outsize.data.sample import IGNORE


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum -log p(label) over pixels whose label is not IGNORE."""
    # at least float32: a bf16 sum over a million pixels would lose most of its digits
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(precise, labels.long(), ignore_index=IGNORE, reduction="sum")


def labelled_count(labels: Tensor) -> float:
    """Count the pixels that cross_entropy_sum adds up."""
    return float(torch.count_nonzero(labels != IGNORE))
