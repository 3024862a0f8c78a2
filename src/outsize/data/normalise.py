"""Raw pixels to network input, the same for training and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BandStatistics:
    """Mean and standard deviation of each band over valid training pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def normalise(images: Tensor, valid: Tensor, statistics: BandStatistics) -> Tensor:
    """Return (x - mean) / std in float32, and 0 (the mean) where pixels are not valid.

    images (sample, band, row, column), valid (sample, row, column).
    """
    mean = _per_band(statistics.mean, images.device)
    scale = _per_band([1.0 / std for std in statistics.std], images.device)
    # where, not a product: invalid pixels may be NaN, and NaN * 0 is NaN
    return torch.where(valid[:, None], (images.to(torch.float32) - mean) * scale, 0.0)


def _per_band(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)
