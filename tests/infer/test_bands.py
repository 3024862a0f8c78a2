"""Bands go by name where both sides name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from outsize.errors import DataError
from outsize.infer.bands import band_order
from outsize.infer.prepare import make_prepare
from outsize.raster.read import SceneReader, describe
from outsize.train.checkpoint import Card

WriteRaster = Callable[..., Path]
OURS = ("blue", "green", "red", "nir")
BLANK = np.ones((4, 8, 8), np.uint16)


@pytest.mark.parametrize(
    ("theirs", "order"),
    [
        (OURS, None),
        ((), None),
        (("red", "green", "blue", "nir"), (2, 1, 0, 3)),
        (("nir", "blue", "green", "red"), (1, 2, 3, 0)),
    ],
)
def test_order(write_raster: WriteRaster, theirs: tuple[str, ...], order: tuple[int, ...] | None) -> None:
    assert band_order(OURS, describe(write_raster("a.tif", BLANK, names=theirs))) == order


def test_names_that_do_not_match_are_refused(write_raster: WriteRaster) -> None:
    info = describe(write_raster("a.tif", BLANK, names=("blue", "green", "red", "swir")))
    with pytest.raises(
        DataError, match=r"a\.tif.*found blue, green, red, swir, needed blue, green, red, nir"
    ):
        band_order(OURS, info)


def test_another_number_of_bands_is_refused(write_raster: WriteRaster) -> None:
    with pytest.raises(DataError, match=r"a\.tif.*found 3 .*needed 4 \(blue, green, red, nir\)"):
        band_order(OURS, describe(write_raster("a.tif", BLANK[:3])))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 1, 0, 3), (3, 0, 1, 2)])
@torch.inference_mode()
def test_permuted_named_bands_give_the_same_input(
    write_raster: WriteRaster,
    scene_pixels: NDArray[np.uint16],
    card: Card,
    net: nn.Module,
    order: tuple[int, ...],
) -> None:
    logits = []
    for name, permutation in (("plain", (0, 1, 2, 3)), ("permuted", order)):
        path = write_raster(
            f"{name}.tif",
            scene_pixels[list(permutation)],
            names=tuple(OURS[band] for band in permutation),
            nodata=0,
        )
        info = describe(path)
        with SceneReader(info) as reader:
            raster = reader.read(info.window)
        prepare = make_prepare(card.bands, info, card.statistics)
        images, valid = torch.from_numpy(raster.pixels)[None], torch.from_numpy(raster.valid)[None]
        logits.append(net(prepare(images, valid)))
    assert torch.equal(*logits)
