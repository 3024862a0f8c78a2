"""The network of digits: parameters, sizes, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outsize.errors import ModelError
from outsize.models import build_model


@pytest.mark.parametrize(("in_channels", "num_params"), [(3, 16_690), (1, 16_546)])
def test_parameters_are_those_that_were_counted(in_channels: int, num_params: int) -> None:
    model = build_model("digits", num_classes=10, in_channels=in_channels)
    assert sum(each.numel() for each in model.parameters()) == num_params
    assert model(torch.randn(2, in_channels, 28, 28)).shape == (2, 10)


def test_sides_need_not_be_multiples_of_four() -> None:
    model = build_model("digits", num_classes=3, in_channels=1, picture_px=[30, 41])
    assert isinstance(model.head, nn.Linear)
    assert model.head.in_features == 24 * 7 * 10
    assert model(torch.randn(2, 1, 30, 41)).shape == (2, 3)


def test_other_pictures_and_options_are_refused() -> None:
    model = build_model("digits", num_classes=10, in_channels=1)
    with pytest.raises(
        ModelError, match=r"found 32 px, needed 28 px; set model.picture_px and train.tile_px"
    ):
        model(torch.randn(1, 1, 32, 32))
    for options in ({"width": 0}, {"picture_px": "28"}, {"picture_px": 4}, {"logits": 1}):
        with pytest.raises(ModelError):
            build_model("digits", num_classes=2, in_channels=1, **options)
