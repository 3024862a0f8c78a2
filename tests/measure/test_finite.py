"""Numbers that are none are found in weights and states, and the tensor is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outsize.measure.finite import bad_weight, first_bad

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_the_first_bad_tensor_is_named(value: float, dtype: torch.dtype) -> None:
    tensors = {
        "a": torch.ones(3, 5, dtype=dtype),
        "b": torch.ones(3, 5, dtype=dtype),
        "count": torch.tensor(3),
        "none": torch.empty(0),
    }
    assert first_bad(tensors) is None
    tensors["b"][2, 3] = value
    assert first_bad(tensors) == "b"


def test_a_mask_may_be_infinite_and_statistics_may_not() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    model.register_buffer("mask", torch.tensor([0.0, -INF]))
    assert bad_weight(model) is None
    model[1].running_var[0] = INF  # type: ignore[index, operator]
    assert bad_weight(model) == "1.running_var"
    model[1].running_var[0] = 1  # type: ignore[index, operator]
    model.mask[0] = NAN  # type: ignore[index, operator]
    assert bad_weight(model) == "mask"
