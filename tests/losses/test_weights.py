"""Class weights from counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outsize.errors import DataError
from outsize.losses.weights import class_weights

NAMES = ("road", "roof", "tree")


def test_none_is_no_weights() -> None:
    assert class_weights("none", np.array([[1, 0, 0]]), NAMES) is None


def test_median_frequency_of_one_image() -> None:
    weights = class_weights("median", np.array([[800, 150, 50]]), NAMES)
    assert weights == pytest.approx((0.15 / 0.8, 1.0, 0.15 / 0.05))


def test_median_frequency_counts_only_images_in_which_a_class_occurs() -> None:
    counts = np.array([[60, 40, 0], [70, 0, 30], [100, 0, 0]])
    frequencies = (230 / 300, 40 / 100, 30 / 100)
    weights = class_weights("median", counts, NAMES)
    assert weights == pytest.approx([0.4 / each for each in frequencies])


def test_logarithmic_weights() -> None:
    weights = class_weights("log", np.array([[500, 100, 0], [300, 50, 50]]), NAMES)
    assert weights == pytest.approx([1 / math.log(1.10 + each) for each in (0.8, 0.15, 0.05)])


def test_the_offset_of_logarithmic_weights() -> None:
    """As published for the encoder of ERFNet: rare classes weigh up to 1/ln(1.20)."""
    weights = class_weights("log", np.array([[800, 150, 50]]), NAMES, log_offset=1.20)
    assert weights == pytest.approx([1 / math.log(1.20 + each) for each in (0.8, 0.15, 0.05)])


@pytest.mark.parametrize("kind", ["median", "log"])
def test_a_class_without_a_pixel_is_named(kind: str) -> None:
    with pytest.raises(DataError, match=r"'tree' cannot be weighted.*class_weights to none"):
        class_weights(kind, np.array([[5, 5, 0]]), NAMES)
