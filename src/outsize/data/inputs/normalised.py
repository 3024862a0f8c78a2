"""Raw pixels to network input, the same for training and prediction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from outsize.data.statistics import BandStatistics


def normalise(images: Tensor, valid: Tensor, statistics: BandStatistics) -> Tensor:
    """Return (x - mean) / std in float32, and 0 (the mean) where pixels are not valid.

    images (sample, band, row, column), valid (sample, row, column).
    """
    mean = _per_band(statistics.mean, images.device)
    scale = _per_band(tuple(1.0 / std for std in statistics.std), images.device)
    # where, not a product: invalid pixels may be NaN, and NaN * 0 is NaN
    return torch.where(valid[:, None], (images.to(torch.float32) - mean) * scale, 0.0)


def with_maps(inputs: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    """Put maps (sample, row, column) behind the bands of network input."""
    return torch.cat((inputs, *(each[:, None].to(inputs.dtype) for each in maps.values())), dim=1)


# Kept on the device: copying even four numbers there makes the host wait for all work queued before.
@lru_cache(maxsize=64)
def _per_band(values: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)
