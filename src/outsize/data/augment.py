"""Changes of a sample that keep its meaning; each draws from the generator it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data import objects as shapes
from outsize.data.colours import blur, draw_recolouring, draw_sigma_px, recolour
from outsize.data.sample import Sample
from outsize.data.statistics import BandStatistics
from outsize.errors import JobError, explain

MAX_SCALE = 2.0  # and 1/2; beyond, bilinear reading would skip pixels
GAIN, OFFSET, NOISE = 0.1, 0.1, 0.05  # of a band's standard deviation

FLOAT_NAMES = frozenset({"scale", "noise"})
"""Those that need numbers between the numbers of a file: with one of them, samples are float32."""


def flip(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Mirror left-right or not."""
    if rng.random() >= 0.5:
        return sample
    mirrored = shapes.flip(sample.objects, sample.labels.shape[1])
    return replace(_each(sample, lambda array: array[..., ::-1]), objects=mirrored)


def turn(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Turn by 0, 1, 2 or 3 quarters."""
    quarters = int(rng.integers(4))
    height, width = sample.labels.shape
    turned = shapes.turn(sample.objects, height, width, quarters)
    return replace(_each(sample, lambda array: np.rot90(array, quarters, axes=(-2, -1))), objects=turned)


def noise(sample: Sample, rng: np.random.Generator, statistics: BandStatistics) -> Sample:
    """Change contrast and brightness of each band, and add noise to each pixel; the result is float32.

    All in units of the band's standard deviation, and contrast about its mean: so it is the same change for
    bytes, reflectances and decibels.
    """
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (statistics.mean, statistics.std))
    shape = (sample.image.shape[0], 1, 1)
    gain = np.exp(GAIN * rng.standard_normal(shape, np.float32))
    offset = mean + OFFSET * std * rng.standard_normal(shape, np.float32) - gain * mean
    grain = rng.standard_normal(sample.image.shape, np.float32)
    grain *= NOISE * np.float32(rng.random()) * std
    grain += sample.image * gain
    grain += offset
    return replace(sample, image=grain)


def jitter(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Change brightness, contrast, saturation and hue of a picture in red, green and blue."""
    num_bands = len(sample.image)
    if num_bands != 3:
        need, remedy = "3: red, green and blue", 'take "noise" instead, which is for any bands'
        raise JobError(
            explain('"jitter" in train.augment is for colours', f"{num_bands} bands", need, remedy)
        )
    drawn = draw_recolouring(rng)
    return _as_floats(sample, lambda image: recolour(image, drawn))


def soften(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Blur every picture a little, some hardly."""
    sigma_px = draw_sigma_px(rng)
    return _as_floats(sample, lambda image: blur(image, sigma_px))


AUGMENTATIONS: dict[str, Callable[[Sample, np.random.Generator, BandStatistics], Sample]] = {
    "flip": flip,
    "turn": turn,
    "noise": noise,
    "jitter": jitter,
    "blur": soften,
}


def augment(
    sample: Sample, names: Sequence[str], rng: np.random.Generator, statistics: BandStatistics
) -> Sample:
    """Apply the named changes in order; `scale` is none of them, for it decides how much is read."""
    for name in names:
        sample = AUGMENTATIONS[name](sample, rng, statistics)
    return sample


def draw_side(rng: np.random.Generator, tile_px: int) -> int:
    """Draw the side of the window that, brought to `tile_px`, is a change of scale: 1/2 to 2, even in log."""
    zoom: float = MAX_SCALE ** rng.uniform(-1, 1)
    return round(tile_px * zoom)


def resize(sample: Sample, side_px: int) -> Sample:
    """Bring a square sample with a float32 image to another side: pixels bilinear, the rest by the nearest.

    Invalid pixels take no part: they would draw a dark rim around what is valid.
    """
    height = sample.labels.shape[0]
    if height == side_px:
        return sample
    centres = (np.arange(side_px) + 0.5) * (height / side_px)
    nearest = centres.astype(np.intp)
    labels, valid = (array[nearest][:, nearest] for array in (sample.labels, sample.valid))
    objects = shapes.scale(sample.objects, sample.labels.shape, (side_px, side_px))
    if sample.valid.all():
        return Sample(_bilinear(sample.image, centres), valid, labels, objects)
    weights = sample.valid.astype(np.float32)
    # a pixel whose nearest one is valid has a weight of at least 1/4
    image = _bilinear(sample.image * weights, centres) / np.maximum(_bilinear(weights, centres), 0.25)
    return Sample(image, valid, labels, objects)


def _bilinear(array: NDArray[np.float32], centres: NDArray[np.float64]) -> NDArray[np.float32]:
    """Take values at `centres` (0.5 is the middle of the first pixel) along rows, then columns."""
    last = array.shape[-1] - 1
    places = np.clip(centres - 0.5, 0, last)
    low = np.minimum(places.astype(np.intp), max(0, last - 1))
    high = np.minimum(low + 1, last)
    share = (places - low).astype(np.float32)
    rows = _between(np.take(array, low, axis=-2), np.take(array, high, axis=-2), share[:, None])
    return _between(np.take(rows, low, axis=-1), np.take(rows, high, axis=-1), share)


def _between(
    one: NDArray[np.float32], other: NDArray[np.float32], share: NDArray[np.float32]
) -> NDArray[np.float32]:
    other -= one
    other *= share
    other += one
    return other


def _as_floats(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    """Change an image as float32; one of whole numbers is rounded and cut off to what they can hold."""
    changed = change(torch.from_numpy(sample.image.astype(np.float32, copy=False)))
    if np.issubdtype(sample.image.dtype, np.integer):
        about = np.iinfo(sample.image.dtype)
        changed = changed.round_().clamp_(about.min, about.max)
    return replace(sample, image=changed.numpy().astype(sample.image.dtype, copy=False))


def _each(sample: Sample, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Sample:
    image, valid, labels = (
        np.ascontiguousarray(change(array)) for array in (sample.image, sample.valid, sample.labels)
    )
    return replace(sample, image=image, valid=valid, labels=labels)
