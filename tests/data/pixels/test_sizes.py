"""Samples at another size, square or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outsize.data.pixels.sizes import resize
from outsize.data.sample import IGNORE, Sample
from outsize.data.targets import ClassRaster


def _sample(shape: tuple[int, int], dtype: str) -> Sample:
    rng = np.random.default_rng(sum(shape))
    image = rng.integers(0, 256, (3, *shape)).astype(dtype)
    return Sample(image, np.ones(shape, np.bool_), ClassRaster(rng.integers(0, 4, shape).astype(np.uint8)))


@pytest.mark.parametrize("shape", [(9, 31), (16, 24), (32, 48), (40, 20)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_window_of_any_shape_becomes_that_of_any_other(shape: tuple[int, int], dtype: str) -> None:
    sample = _sample(shape, dtype)
    found = resize(sample, (16, 24))
    pixels = torch.from_numpy(sample.image.astype(np.float32))[None]
    expected = torch.nn.functional.interpolate(pixels, size=(16, 24), mode="bilinear")[0].numpy()
    assert found.image.dtype == dtype
    # bytes are rounded, once along each axis
    np.testing.assert_allclose(found.image, expected, atol=1.01 if dtype == "uint8" else 1e-3)
    labels = torch.from_numpy(sample.target.labels)[None, None]
    nearest = torch.nn.functional.interpolate(labels, size=(16, 24), mode="nearest-exact")
    np.testing.assert_array_equal(found.target.labels, nearest[0, 0])
    assert found.valid.all()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("part", [(0, 30, 5, 40), (3, 17, 0, 40), (10, 11, 20, 21), (7, 30, 9, 33)])
def test_the_end_of_a_picture_leaves_no_rim(part: tuple[int, int, int, int], dtype: str) -> None:
    """What lies beyond the end of a picture takes no part, as if its last pixels went on forever."""
    top, bottom, left, right = part
    rng = np.random.default_rng(1)
    inside = rng.integers(90, 110, (2, bottom - top, right - left)).astype(dtype)
    image = np.zeros((2, 30, 40), dtype)
    image[:, top:bottom, left:right] = inside
    valid = np.zeros((30, 40), np.bool_)
    valid[top:bottom, left:right] = True
    found = resize(Sample(image, valid, ClassRaster(np.where(valid, 1, IGNORE).astype(np.uint8))), (45, 36))
    whole = np.pad(inside, ((0, 0), (top, 30 - bottom), (left, 40 - right)), mode="edge")
    plain = resize(Sample(whole, np.ones_like(valid), ClassRaster(np.zeros(valid.shape, np.uint8))), (45, 36))
    np.testing.assert_array_equal(found.image[:, found.valid], plain.image[:, found.valid])
    assert not found.image[:, ~found.valid].any()
    np.testing.assert_array_equal(found.target.labels != IGNORE, found.valid)


def test_bytes_with_holes_stay_bytes_and_unstained() -> None:
    rng = np.random.default_rng(2)
    valid = rng.random((30, 50)) < 0.6
    image = np.where(valid, np.uint8(200), np.uint8(0))[None].repeat(3, 0)
    found = resize(Sample(image, valid, ClassRaster(np.where(valid, 1, IGNORE).astype(np.uint8))), (20, 40))
    assert found.image.dtype == np.uint8
    assert set(np.unique(found.image[:, found.valid])) == {200}
