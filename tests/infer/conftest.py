"""A small net with random weights, its card, rasters from arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.card import Card
from outsize.data.statistics import BandStatistics
from outsize.data.synthetic.scenes import CLASSES
from outsize.job import ClassSpec
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.models import build_model
from outsize.plan.plan import Tiling
from outsize.tiles.halo import derive_halo


class InDouble(nn.Module):
    """Computes in float64, where no two logits are close enough for rounding to choose between classes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.double()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits in float64."""
        logits: Tensor = self.model(images.double())
        return logits


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(4)
    unet = build_model("unet", num_classes=6, in_channels=4, levels=3, width=4, norm="none")
    return InDouble(unet).eval()


@pytest.fixture
def card() -> Card:
    return Card(
        task="segment",
        model="unet",
        options={},
        # values that are no indices, so that mixing the two up shows
        classes=tuple(
            ClassSpec(name=each.name, value=10 + each.value, colour=each.colour) for each in CLASSES
        ),
        bands=("blue", "green", "red", "nir"),
        dtype="uint16",
        statistics=BandStatistics((600.0, 800.0, 700.0, 2000.0), (300.0, 300.0, 400.0, 900.0)),
    )


@pytest.fixture
def tiling(net: nn.Module) -> Callable[[int], Tiling]:
    halo = derive_halo(trace(net, example_shape(4))).aligned

    def of(core_px: int) -> Tiling:
        before = halo.rows.before_px, halo.cols.before_px
        return Tiling(core_px, before, (halo.rows.after_px, halo.cols.after_px), halo.stride_px)

    return of


@pytest.fixture
def scene_pixels() -> NDArray[np.uint16]:
    """Bands of a smooth scene with a hole of nodata, neither side a multiple of anything."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(100, 3000, (4, 20, 25))
    pixels = np.kron(coarse, np.ones((8, 8), int))[:, :150, :197].astype(np.uint16)
    pixels += rng.integers(0, 200, pixels.shape).astype(np.uint16)
    pixels[:, 60:90, 100:160] = 0
    return pixels
