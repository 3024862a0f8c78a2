"""What a network is fed does not depend on the order of named bands in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from outsize.card import Card
from outsize.data.inputs.edges import map_maker
from outsize.infer.prepare import make_prepare
from outsize.raster.reading import SceneReader, describe

WriteRaster = Callable[..., Path]
OURS = ("blue", "green", "red", "nir")


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


def test_maps_follow_the_bands_and_are_those_of_training(
    write_raster: WriteRaster, scene_pixels: NDArray[np.uint16], card: Card
) -> None:
    info = describe(write_raster("maps.tif", scene_pixels, names=OURS, nodata=0))
    with SceneReader(info) as reader:
        raster = reader.read(info.window)
    images, valid = torch.from_numpy(raster.pixels)[None], torch.from_numpy(raster.valid)[None]
    plain = make_prepare(card.bands, info, card.statistics)(images, valid)
    found = make_prepare(card.bands, info, card.statistics, ("canny",))(images, valid)
    assert torch.equal(found[:, :-1], plain)
    maker = map_maker(("canny",), "uint16", card.statistics)
    assert maker is not None
    lines = maker(images, valid, valid)["canny"]
    assert torch.equal(found[:, -1], lines.float())
    assert 0 < lines.float().mean() < 1
