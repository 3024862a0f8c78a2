"""Changes of a sample that keep its meaning; each draws from the generator it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.sample import Sample


def flip(sample: Sample, rng: np.random.Generator) -> Sample:
    """Mirror left-right or not."""
    return _each(sample, lambda array: array[..., ::-1]) if rng.random() < 0.5 else sample


def turn(sample: Sample, rng: np.random.Generator) -> Sample:
    """Turn by 0, 1, 2 or 3 quarters."""
    quarters = int(rng.integers(4))
    return _each(sample, lambda array: np.rot90(array, quarters, axes=(-2, -1)))


AUGMENTATIONS: dict[str, Callable[[Sample, np.random.Generator], Sample]] = {"flip": flip, "turn": turn}


def augment(sample: Sample, names: Sequence[str], rng: np.random.Generator) -> Sample:
    """Apply the named changes in order."""
    for name in names:
        sample = AUGMENTATIONS[name](sample, rng)
    return sample


def _each(sample: Sample, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Sample:
    image, valid, labels = (
        np.ascontiguousarray(change(array)) for array in (sample.image, sample.valid, sample.labels)
    )
    return replace(sample, image=image, valid=valid, labels=labels)
