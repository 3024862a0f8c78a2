"""Changes of a sample that keep its meaning; each draws from the generator it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.arrays import mirrored
from outsize.data.pixels.colours import draw_recolouring, draw_sigma_px
from outsize.data.pixels.strips import blur_pixels, recolour_pixels
from outsize.data.sample import Sample
from outsize.data.statistics import BandStatistics
from outsize.errors import JobError, explain
from outsize.units import Size, sides_of, size_of

MAX_SCALE = 2.0  # and 1/2; beyond, bilinear reading would skip pixels
SHIFT_SCALE, SHIFT_PX = 0.1, 16  # of a picture that is shown whole: FastBox meant it so
LIGHT, CONTRAST = 30 / 255, 0.25  # of the range of whole numbers; about each band's mean
GAIN, OFFSET, NOISE = 0.1, 0.1, 0.05  # of a band's standard deviation


def flip(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Mirror left-right or not."""
    if rng.random() >= 0.5:
        return sample
    return replace(_each(sample, mirrored), target=sample.target.flip())


def turn(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Turn by 0, 1, 2 or 3 quarters; a window that is no square by none or two, or it would have another shape."""
    height, width = sample.valid.shape
    quarters = int(rng.integers(4)) if height == width else 2 * int(rng.integers(2))
    turned = _each(sample, lambda array: np.rot90(array, quarters, axes=(-2, -1)))
    return replace(turned, target=sample.target.turn(quarters))


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
    return replace(sample, image=recolour_pixels(sample.image, drawn))


def light(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Make a picture brighter or darker, then change its contrast, as FastBox did; whole numbers are cut off."""
    image = sample.image
    if not np.issubdtype(image.dtype, np.integer):
        need, remedy = "whole numbers, whose range is known", 'take "noise" instead, which is for any bands'
        raise JobError(explain('"light" in train.augment is for pictures', image.dtype, need, remedy))
    about = np.iinfo(image.dtype)
    offset = rng.uniform(-LIGHT, LIGHT) * (int(about.max) - int(about.min))
    gain = rng.uniform(1 - CONTRAST, 1 + CONTRAST)
    mean = image.mean((1, 2), dtype=np.float64)
    # the mean moves with the picture, and the contrast leaves it where it is
    made = np.multiply(image, np.float32(gain), dtype=np.float32)
    made += (offset + (1 - gain) * mean).astype(np.float32)[:, None, None]
    np.rint(made, out=made)
    return replace(sample, image=made.clip(about.min, about.max, out=made).astype(image.dtype))


def soften(sample: Sample, rng: np.random.Generator, _: BandStatistics) -> Sample:
    """Blur every picture a little, some hardly."""
    sigma_px = draw_sigma_px(rng)
    return replace(sample, image=blur_pixels(sample.image, sigma_px))


AUGMENTATIONS: dict[str, Callable[[Sample, np.random.Generator, BandStatistics], Sample]] = {
    "flip": flip,
    "turn": turn,
    "noise": noise,
    "jitter": jitter,
    "light": light,
    "blur": soften,
}


def augment(
    sample: Sample, names: Sequence[str], rng: np.random.Generator, statistics: BandStatistics
) -> Sample:
    """Apply the named changes in order; `scale` and `shift` are none of them, for they decide what is read."""
    for name in names:
        sample = AUGMENTATIONS[name](sample, rng, statistics)
    return sample


def draw_size(rng: np.random.Generator, tile_px: Size, *, widely: bool = True) -> Size:
    """Draw the size of the window that, brought to `tile_px`, is a change of scale: 1/2 to 2, even in log; or less."""
    zoom: float = (
        MAX_SCALE ** rng.uniform(-1, 1) if widely else 1 / rng.uniform(1 - SHIFT_SCALE, 1 + SHIFT_SCALE)
    )
    height, width = sides_of(tile_px)
    return size_of(round(height * zoom), round(width * zoom))


def most_zoom(names: Sequence[str]) -> float:
    """Return by how much the side of what is read may be longer than that of a training window."""
    if "scale" in names:
        return MAX_SCALE
    return 1 / (1 - SHIFT_SCALE) if "shift" in names else 1.0


def _each(sample: Sample, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Sample:
    image, valid = (np.ascontiguousarray(change(array)) for array in (sample.image, sample.valid))
    return replace(sample, image=image, valid=valid)
