"""Augmentations move pixels, validity and labels together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from outsize.data.pixels.augmentations import augment, draw_size, most_zoom, noise
from outsize.data.pixels.sizes import resize
from outsize.data.sample import IGNORE, Sample
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRaster
from outsize.errors import JobError

STATISTICS = BandStatistics((20.0, 120.0), (10.0, 40.0))


def _sample() -> Sample:
    labels = np.arange(36, dtype=np.uint8).reshape(6, 6)
    return Sample(np.stack([labels, labels + 100]).astype(np.uint16), labels % 5 > 0, ClassRaster(labels))


def _changed(names: tuple[str, ...], seed: int) -> Sample:
    return augment(_sample(), names, np.random.default_rng(seed), STATISTICS)


@pytest.mark.parametrize(("name", "num_ways"), [("flip", 2), ("turn", 4)])
def test_pixel_and_label_move_together(name: str, num_ways: int) -> None:
    seen = set()
    for seed in range(30):
        moved = _changed((name,), seed)
        np.testing.assert_array_equal(moved.image[0], moved.target.labels)
        np.testing.assert_array_equal(moved.image[1], moved.target.labels + 100)
        np.testing.assert_array_equal(moved.valid, moved.target.labels % 5 > 0)
        assert sorted(moved.target.labels.ravel()) == list(range(36))
        assert moved.image.flags.c_contiguous
        seen.add(moved.target.labels.tobytes())
    assert len(seen) == num_ways


def test_flip_and_turn_reach_all_eight_ways_a_square_can_lie() -> None:
    assert len({_changed(("flip", "turn"), seed).target.labels.tobytes() for seed in range(200)}) == 8


@pytest.mark.parametrize("names", [(), ("flip", "turn"), ("noise", "flip")])
def test_the_generator_alone_decides(names: tuple[str, ...]) -> None:
    first, second = (_changed(names, 4) for _ in range(2))
    np.testing.assert_array_equal(first.image, second.image)
    assert names == () or _changed(names, 5).image.tobytes() != first.image.tobytes()
    if not names:
        np.testing.assert_array_equal(first.image, _sample().image)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_noise_is_in_units_of_the_band_whatever_its_numbers_are(dtype: str) -> None:
    rng = np.random.default_rng(0)
    standard = rng.standard_normal((3, 64, 64))
    mean, std = np.array([50.0, 100.0, 120.0]), np.array([3.0, 10.0, 30.0])
    image = (standard * std[:, None, None] + mean[:, None, None]).clip(0, 255).astype(dtype)
    sample = Sample(image, np.ones((64, 64), bool), ClassRaster(np.zeros((64, 64), np.uint8)))
    statistics = BandStatistics(tuple(mean), tuple(std))
    offsets, gains = [], []
    for seed in range(40):
        found = noise(sample, np.random.default_rng(seed), statistics)
        assert found.image.dtype == np.float32
        assert found.target.labels is sample.target.labels
        for band in range(3):
            gain, offset = np.polyfit(image[band].ravel() - mean[band], found.image[band].ravel(), 1)
            gains.append(gain)
            offsets.append((offset - mean[band]) / std[band])
            left = found.image[band] - (image[band] - mean[band]) * gain - offset
            assert left.std() / std[band] < 0.052
    assert 0.07 < np.std(gains) < 0.13
    assert 0.07 < np.std(offsets) < 0.13
    assert abs(np.mean(gains) - 1) < 0.04
    assert abs(np.mean(offsets)) < 0.04
    # bands change apart from each other
    assert np.corrcoef(offsets[0::3], offsets[1::3])[0, 1] < 0.5


def test_scales_are_even_in_their_logarithm() -> None:
    rng = np.random.default_rng(0)
    sides = np.array([draw_size(rng, 256) for _ in range(4000)])
    assert sides.min() >= 128
    assert sides.max() <= 512
    thirds = np.histogram(np.log2(sides / 256), bins=[-1.01, -1 / 3, 1 / 3, 1.01])[0] / 4000
    np.testing.assert_allclose(thirds, 1 / 3, atol=0.03)


def test_a_window_that_is_no_square_is_scaled_alike_on_both_sides() -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([draw_size(rng, (64, 128)) for _ in range(300)])
    np.testing.assert_allclose(sizes[:, 1], 2 * sizes[:, 0], atol=1)
    again = np.random.default_rng(0)
    assert draw_size(again, 64) in (sizes[0, 0], sizes[0, 0] + 1, sizes[0, 0] - 1)  # the same draw


def test_turns_keep_the_shape_of_a_window() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(1, 4, 6)
    sample = Sample(pixels, np.ones((4, 6), np.bool_), ClassRaster(pixels[0]))
    rng = np.random.default_rng(0)
    found = {augment(sample, ("turn",), rng, RGB).image.tobytes() for _ in range(40)}
    assert found == {pixels.tobytes(), pixels[:, ::-1, ::-1].tobytes()}


@pytest.mark.parametrize("side", [9, 16, 23, 32])
def test_pixels_are_resized_as_torch_does(side: int) -> None:
    rng = np.random.default_rng(side)
    image = rng.random((3, side, side), np.float32)
    labels = rng.integers(0, 4, (side, side)).astype(np.uint8)
    found = resize(Sample(image, np.ones((side, side), bool), ClassRaster(labels)), 16)
    expected = torch.nn.functional.interpolate(torch.from_numpy(image)[None], size=16, mode="bilinear")[0]
    np.testing.assert_allclose(found.image, expected, atol=1e-6)
    nearest = torch.nn.functional.interpolate(
        torch.from_numpy(labels)[None, None], size=16, mode="nearest-exact"
    )
    np.testing.assert_array_equal(found.target.labels, nearest[0, 0])
    assert found.image.dtype == np.float32
    assert found.valid.all()


@pytest.mark.parametrize("side", [16, 40, 64])
def test_image_and_labels_stay_in_one_place(side: int) -> None:
    """A step in the image, and the same step in the labels, lie at the same pixel at every scale."""
    labels = np.zeros((side, side), np.uint8)
    labels[side // 4 :, side // 2 :] = 1
    found = resize(
        Sample(labels[None].astype(np.float32), np.ones((side, side), bool), ClassRaster(labels)), 32
    )
    assert np.abs(found.image[0] - found.target.labels).max() <= 0.5


@pytest.mark.parametrize("side", [20, 50, 64])
def test_invalid_pixels_do_not_stain_their_neighbours(side: int) -> None:
    rng = np.random.default_rng(1)
    valid = rng.random((side, side)) < 0.6
    labels = np.where(valid, 1, IGNORE).astype(np.uint8)
    image = np.where(valid, np.float32(700), np.float32(0))[None].repeat(2, 0)
    found = resize(Sample(image, valid, ClassRaster(labels)), 32)
    np.testing.assert_allclose(found.image[:, found.valid], 700, rtol=1e-5)
    np.testing.assert_array_equal(found.target.labels != IGNORE, found.valid)
    assert 0.4 < found.valid.mean() < 0.8


def test_a_sample_of_the_right_side_is_left_alone() -> None:
    sample = _sample()
    assert resize(sample, 6) is sample


RGB = BandStatistics((100.0,) * 3, (50.0,) * 3)


def _photo(dtype: str) -> Sample:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 24, 20)).astype(dtype)
    return Sample(pixels, np.ones((24, 20), np.bool_), ClassRaster(np.zeros((24, 20), np.uint8)))


@pytest.mark.parametrize("name", ["jitter", "blur"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_colours_and_sharpness_change_pixels_alone(name: str, dtype: str) -> None:
    sample = _photo(dtype)
    before = sample.image.copy()
    first, again, other = (augment(sample, (name,), np.random.default_rng(seed), RGB) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.image, again.image)
    assert first.image.tobytes() != other.image.tobytes()
    np.testing.assert_array_equal(sample.image, before)
    assert first.image.dtype == dtype
    assert first.target.labels is sample.target.labels
    assert abs(float(first.image.mean()) - float(before.mean())) < 60


def test_bytes_are_cut_off_and_not_wrapped() -> None:
    white = Sample(
        np.full((3, 8, 8), 255, np.uint8), np.ones((8, 8), np.bool_), ClassRaster(np.zeros((8, 8), np.uint8))
    )
    for seed in range(20):
        assert augment(white, ("jitter",), np.random.default_rng(seed), RGB).image.min() > 100


def test_jitter_is_for_colours() -> None:
    with pytest.raises(JobError, match=r"jitter.*found 2 bands, needed 3: red, green and blue"):
        _changed(("jitter",), 0)


def test_light_changes_brightness_and_contrast_and_is_cut_off() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(60, 190, (3, 40, 50)).astype(np.uint8)
    labels = ClassRaster(np.zeros((40, 50), np.uint8))
    sample = Sample(image, np.ones((40, 50), np.bool_), labels)
    offsets, gains = [], []
    for seed in range(60):
        found = augment(sample, ("light",), np.random.default_rng(seed), RGB).image
        assert found.dtype == np.uint8
        inner = (found > 0) & (found < 255)
        lines = [np.polyfit(image[band][inner[band]], found[band][inner[band]], 1) for band in range(3)]
        means = image.mean((1, 2))
        gain = np.array([line[0] for line in lines])
        offset = np.array([np.polyval(line, mean) - mean for line, mean in zip(lines, means, strict=True)])
        np.testing.assert_allclose(gain, gain[0], atol=0.01)  # all bands alike
        np.testing.assert_allclose(offset, offset[0], atol=0.5)
        gains.append(gain[0])
        offsets.append(offset[0])
    assert 0.74 < min(gains) < 0.8
    assert 1.2 < max(gains) < 1.26
    assert -31 < min(offsets) < -24
    assert 24 < max(offsets) < 31
    bright = replace(sample, image=np.full_like(image, 250))
    found = [augment(bright, ("light",), np.random.default_rng(seed), RGB).image for seed in range(20)]
    assert max(each.max() for each in found) == 255


def test_light_needs_numbers_whose_range_is_known() -> None:
    sample = replace(_sample(), image=_sample().image.astype(np.float32))
    with pytest.raises(JobError, match=r'"light".*found float32'):
        augment(sample, ("light",), np.random.default_rng(0), STATISTICS)


@pytest.mark.parametrize(("names", "most"), [((), 1.0), (("shift",), 1 / 0.9), (("scale", "shift"), 2.0)])
def test_no_window_is_read_larger_than_said(names: tuple[str, ...], most: float) -> None:
    assert most_zoom(names) == pytest.approx(most)
    rng = np.random.default_rng(0)
    if names:
        sides = [draw_size(rng, 900, widely="scale" in names) for _ in range(500)]
        assert 0.97 * most < max(sides) / 900 <= most + 1e-3
