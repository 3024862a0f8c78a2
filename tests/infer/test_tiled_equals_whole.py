"""Logits computed tile by tile equal those of the whole picture, for random sizes and cores."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.infer.compare import probe_side_px, tiled_difference
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.models import build_model
from outsize.tiles.halo import Halo, derive_halo

_CASES = [
    (norm, upsampling) for norm in ("none", "batch") for upsampling in ("transposed", "nearest", "bilinear")
]


def _net(norm: str, upsampling: str, levels: int, dtype: torch.dtype) -> tuple[torch.nn.Module, Halo]:
    torch.manual_seed(1)
    model = build_model(
        "unet", num_classes=3, in_channels=2, levels=levels, width=3, norm=norm, upsampling=upsampling
    ).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # statistics as after training, not 0 and 1
            module.running_mean.uniform_(-0.3, 0.3)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return model.to(dtype), derive_halo(trace(model, example_shape(2)))


_FLOAT32, _FLOAT64 = (torch.float32, 1e-5), (torch.float64, 1e-11)
_QUICK = [
    ("none", "transposed", *_FLOAT64),
    ("batch", "nearest", *_FLOAT64),
    ("batch", "bilinear", *_FLOAT32),
]
_ALL = [(*case, *kind) for case in _CASES for kind in (_FLOAT32, _FLOAT64)]


@pytest.mark.parametrize(
    ("norm", "upsampling", "dtype", "tolerance"),
    [each if each in _QUICK else pytest.param(*each, marks=pytest.mark.long) for each in _ALL],
)
def test_five_levels_with_an_interior_window(
    norm: str, upsampling: str, dtype: torch.dtype, tolerance: float
) -> None:
    model, halo = _net(norm, upsampling, 5, dtype)
    side_px = probe_side_px(64, halo)
    difference = tiled_difference(model, torch.randn(1, 2, side_px, side_px, dtype=dtype), 64, halo)
    assert difference.interior_tiles > 0
    assert difference.relative <= tolerance


@cache
def _small(which: int) -> tuple[torch.nn.Module, Halo]:
    return _net(*_CASES[3:][which], 3, torch.float64)


@settings(max_examples=25, deadline=None)
@given(
    which=st.integers(0, len(_CASES[3:]) - 1),
    height=st.integers(1, 150),
    width=st.integers(1, 150),
    num_strides=st.integers(1, 20),
)
def test_random_sizes_and_cores(which: int, height: int, width: int, num_strides: int) -> None:
    model, halo = _small(which)
    picture = torch.randn(1, 2, height, width, dtype=torch.float64)
    difference = tiled_difference(model, picture, num_strides * halo.stride_px, halo)
    assert difference.relative <= 1e-11
