"""From the raw pixels of a scene to what a model was trained on: bands in order, values normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outsize.data.bands import band_order
from outsize.data.inputs import MapMaker, gains_to_bytes, normalise, with_maps
from outsize.data.statistics import BandStatistics
from outsize.infer.stream import Prepare
from outsize.raster.reading import SceneInfo


def make_prepare(
    bands: Sequence[str], info: SceneInfo, statistics: BandStatistics, maps: Sequence[str] = ()
) -> Prepare:
    """Return the function that turns a scene's raw windows into network input; refuse other bands.

    `maps` are made of the pixels and follow the bands.
    """
    order = band_order(bands, info)
    make_maps = MapMaker(tuple(maps), gains_to_bytes(info.dtype, statistics))

    def prepare(images: Tensor, valid: Tensor) -> Tensor:
        # cat of views, not indexing with a list, which would copy the list to the device and wait
        ordered = images if order is None else torch.cat([images[:, band, None] for band in order], dim=1)
        inputs = normalise(ordered, valid, statistics)
        return with_maps(inputs, make_maps(ordered, valid)) if maps else inputs

    return prepare
