"""Raw pixels to network input."""

from __future__ import annotations

import pytest
import torch

from outsize.data.inputs.normalised import normalise
from outsize.data.statistics import BandStatistics

STATISTICS = BandStatistics((100.0, -2.0), (10.0, 0.5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16, torch.float32])
def test_mean_is_taken_off_and_std_divided_by(dtype: torch.dtype) -> None:
    images = torch.tensor([90, 120, 0, 3]).view(1, 2, 1, 2).to(dtype)
    found = normalise(images, torch.ones(1, 1, 2, dtype=torch.bool), STATISTICS)
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [-1.0, 2.0, 4.0, 10.0]


def test_invalid_pixels_are_zero_whatever_lies_under_them() -> None:
    images = torch.full((1, 2, 2, 2), 7.0)
    images[0, 0, 0, 0] = float("nan")
    images[0, 1, 0, 1] = float("inf")
    valid = torch.tensor([[[False, False], [True, False]]])
    found = normalise(images, valid, STATISTICS)
    assert found[0, :, 0].abs().max() == 0
    assert found[0, :, 1, 1].abs().max() == 0
    assert found[0, :, 1, 0].abs().min() > 0
