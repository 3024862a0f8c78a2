"""Training windows: a function of seed, epoch and index alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outsize.data.sample import IGNORE, Sample
from outsize.data.sampling.blocks import index_blocks
from outsize.data.sampling.draw import EpochMix
from outsize.data.sampling.windows import TrainingWindows, num_classes
from outsize.data.scenes import LabelledScene, label_table, open_scenes
from outsize.data.statistics import BandStatistics
from outsize.raster.reading import SceneReader
from outsize.tiles.window import Window

WriteRaster = Callable[..., Path]
TABLE = label_table([0, 1, 2], ignore_value=255)


def _pair(write_raster: WriteRaster, name: str, height: int, width: int) -> tuple[LabelledScene, ...]:
    """A scene whose first band is 1 + its class, so that label and pixel can be compared anywhere."""
    rng = np.random.default_rng(len(name))
    classes = rng.integers(0, 3, (height, width)).astype(np.uint8)
    places = np.arange(height * width).reshape(height, width) % 60000
    path = write_raster(f"{name}.tif", np.stack([classes + 1, places]).astype(np.uint16), nodata=65535)
    write_raster(f"{name}_labels.tif", classes)
    return open_scenes([str(path)], "{stem}_labels.tif")


def _windows(
    scenes: tuple[LabelledScene, ...],
    *,
    seed: int = 1,
    augmentations: tuple[str, ...] = ("flip", "turn"),
    **mix: float,
) -> TrainingWindows:
    statistics = BandStatistics((2.0, 0.0), (1.0, 1.0))
    options: dict[str, Any] = {"tile_px": 32, "seed": seed, "statistics": statistics}
    index = index_blocks(scenes, TABLE, 3, block_px=8, num_threads=1) if mix else None
    return TrainingWindows(
        scenes, TABLE, augmentations=augmentations, mix=EpochMix(**mix), index=index, **options
    )


def _same(one: Sample, other: Sample) -> bool:
    return all(
        np.array_equal(*each)
        for each in (
            (one.image, other.image),
            (one.valid, other.valid),
            (one.target.labels, other.target.labels),
        )
    )


EVERYTHING: dict[str, Any] = {
    "augmentations": ("scale", "noise", "flip", "turn"),
    "rare_share": 0.5,
    "empty_share": 0.2,
}


@pytest.mark.parametrize("options", [{}, EVERYTHING])
def test_a_sample_depends_on_seed_epoch_and_index_alone(
    write_raster: WriteRaster, options: dict[str, Any]
) -> None:
    scenes = _pair(write_raster, "a", 80, 100) + _pair(write_raster, "bb", 90, 60)
    windows = _windows(scenes, **options)
    asked = [(epoch, index) for epoch in range(3) for index in range(12)]
    in_order = {each: windows.sample(*each) for each in asked}
    windows.close()
    again = _windows(scenes, **options)
    with ThreadPoolExecutor(4) as pool:
        from_threads = list(pool.map(lambda each: again.sample(*each), reversed(asked)))
    again.close()
    assert all(
        _same(in_order[each], found) for each, found in zip(reversed(asked), from_threads, strict=True)
    )
    distinct = {sample.image.tobytes() for sample in in_order.values()}
    assert len(distinct) == len(asked)
    other = _windows(scenes, seed=2, **options)
    assert not _same(other.sample(0, 0), in_order[0, 0])
    other.close()


def test_pixels_and_labels_are_of_one_place(write_raster: WriteRaster) -> None:
    windows = _windows(_pair(write_raster, "a", 80, 100))
    for index in range(20):
        sample = windows.sample(0, index)
        assert sample.valid.all()
        assert sample.image.shape == (2, 32, 32)
        np.testing.assert_array_equal(sample.image[0], sample.target.labels + 1)
    windows.close()


@pytest.mark.parametrize(("height", "width"), [(20, 100), (9, 7)])
def test_a_scene_smaller_than_the_window_is_padded_with_ignore(
    write_raster: WriteRaster, height: int, width: int
) -> None:
    windows = _windows(_pair(write_raster, "a", height, width))
    sample = windows.sample(0, 0)
    windows.close()
    assert sample.target.labels.shape == (32, 32)
    assert np.count_nonzero(sample.valid) == height * min(width, 32)
    assert (sample.target.labels[~sample.valid] == IGNORE).all()
    assert (sample.target.labels[sample.valid] < 3).all()


def test_invalid_pixels_are_never_learnt(write_raster: WriteRaster) -> None:
    pixels = np.ones((1, 64, 64), np.uint16)
    pixels[:, :, :40] = 0
    path = write_raster("a.tif", pixels, nodata=0)
    write_raster("a_labels.tif", np.ones((64, 64), np.uint8))
    windows = _windows(open_scenes([str(path)], "{stem}_labels.tif"))
    for index in range(30):
        sample = windows.sample(0, index)
        np.testing.assert_array_equal(sample.target.labels != IGNORE, sample.valid)
        assert sample.valid.any()  # drawn again until something is labelled
    windows.close()


def test_one_epoch_covers_the_scenes_by_default(write_raster: WriteRaster) -> None:
    windows = _windows(_pair(write_raster, "a", 64, 96) + _pair(write_raster, "bb", 32, 64))
    assert windows.samples_per_cover == 6 + 2
    windows.close()


def test_windows_lie_in_the_areas_of_the_split(write_raster: WriteRaster) -> None:
    areas = (Window(0, 0, 40, 100), Window(60, 10, 20, 12))
    scenes = tuple(replace(each, areas=areas) for each in _pair(write_raster, "a", 80, 100))
    windows = _windows(scenes, augmentations=())
    assert windows.samples_per_cover == round((4000 + 240) / 32**2)
    num_small = 0
    for index in range(150):
        sample = windows.sample(0, index)
        rows, cols = np.divmod(sample.image[1][sample.target.labels != IGNORE].astype(int), 100)
        if rows.min() >= 40:  # the small area: all of it, in the middle, and nothing around it
            assert (rows.min(), rows.max(), cols.min(), cols.max()) == (60, 79, 10, 21)
            assert (sample.target.labels != IGNORE)[6:26, 10:22].all()
            assert rows.size == 240
            num_small += 1
        else:
            assert rows.max() < 40
            assert rows.size == 32 * 32
    assert 0 < num_small < 30
    windows.close()


def test_labels_of_a_neighbouring_area_are_used_too(write_raster: WriteRaster) -> None:
    areas = (Window(10, 0, 20, 100), Window(30, 0, 20, 100))  # side by side, each lower than a window
    scenes = tuple(replace(each, areas=areas) for each in _pair(write_raster, "a", 80, 100))
    windows = _windows(scenes, augmentations=())
    for index in range(20):
        known = (windows.sample(0, index).target.labels != IGNORE).all(1)
        assert known.sum() == 26
    windows.close()


def _sparse(write_raster: WriteRaster, side: int = 640) -> tuple[LabelledScene, ...]:
    """A scene nearly all of class 0, with a spot of class 1 and a smaller one of class 2."""
    labels = np.zeros((side, side), np.uint8)
    labels[100:140, 300:330] = 1
    labels[500:506, 50:56] = 2
    path = write_raster("s.tif", np.stack([labels + 1, labels]).astype(np.uint16))
    write_raster("s_labels.tif", labels)
    return open_scenes([str(path)], "{stem}_labels.tif")


def _holding(windows: TrainingWindows, label: int, num: int = 200) -> float:
    return float(np.mean([(windows.sample(3, index).target.labels == label).any() for index in range(num)]))


def test_rare_classes_are_seen_as_often_as_asked(write_raster: WriteRaster) -> None:
    scenes = _sparse(write_raster)
    plain, some, all_rare = (_windows(scenes, rare_share=share) for share in (0.0, 0.5, 1.0))
    assert _holding(plain, 2) < 0.03
    assert _holding(some, 2) == pytest.approx(0.25, abs=0.08)
    assert _holding(all_rare, 2) == pytest.approx(0.5, abs=0.1)
    assert _holding(all_rare, 1) == pytest.approx(0.5, abs=0.1)
    for each in (plain, some, all_rare):
        each.close()


@pytest.mark.parametrize("scale", [(), ("scale",)])
def test_a_rare_class_is_seen_at_every_scale(write_raster: WriteRaster, scale: tuple[str, ...]) -> None:
    windows = _windows(_sparse(write_raster), augmentations=scale, rare_share=1.0)
    assert all((windows.sample(0, index).target.labels > 0).any() for index in range(100))
    windows.close()


def _empty_share(windows: TrainingWindows, num: int = 300) -> float:
    found = [num_classes(windows.sample(0, index).target.labels) < 2 for index in range(num)]
    windows.close()
    return float(np.mean(found))


def test_windows_of_one_class_are_capped(write_raster: WriteRaster) -> None:
    scenes = _sparse(write_raster)
    assert _empty_share(_windows(scenes)) > 0.95
    for cap in (0.0, 0.3, 0.7):
        assert _empty_share(_windows(scenes, empty_share=cap)) == pytest.approx(cap, abs=0.08)


def test_a_cap_above_what_there_is_changes_nothing(write_raster: WriteRaster) -> None:
    labels = np.zeros((300, 300), np.uint8)
    labels[:, 150:] = 1
    labels[::60, ::60] = 2
    path = write_raster("s.tif", np.stack([labels + 1, labels]).astype(np.uint16))
    write_raster("s_labels.tif", labels)
    scenes = open_scenes([str(path)], "{stem}_labels.tif")
    plain, capped = _empty_share(_windows(scenes)), _empty_share(_windows(scenes, empty_share=0.8))
    assert 0.4 < plain < 0.75
    assert capped == plain


def test_scenes_of_one_class_each_do_not_hang(write_raster: WriteRaster) -> None:
    path = write_raster("s.tif", np.ones((2, 64, 64), np.uint16))
    write_raster("s_labels.tif", np.ones((64, 64), np.uint8))
    scenes = open_scenes([str(path)], "{stem}_labels.tif")
    assert _empty_share(_windows(scenes, empty_share=0.0), 5) == 1.0


def test_a_mix_without_an_index_is_a_mistake(write_raster: WriteRaster) -> None:
    statistics = BandStatistics((0.0, 0.0), (1.0, 1.0))
    with pytest.raises(ValueError, match="index"):
        TrainingWindows(
            _pair(write_raster, "a", 40, 40),
            TABLE,
            tile_px=32,
            augmentations=(),
            statistics=statistics,
            seed=0,
            mix=EpochMix(rare_share=0.5),
        )


@pytest.mark.parametrize("names", [("scale",), ("noise",), ("flip",)])
def test_all_samples_have_one_shape_and_one_dtype(write_raster: WriteRaster, names: tuple[str, ...]) -> None:
    windows = _windows(_pair(write_raster, "a", 80, 100), augmentations=names)
    samples = [windows.sample(0, index) for index in range(25)]
    assert {sample.image.shape for sample in samples} == {(2, 32, 32)}
    assert {str(sample.image.dtype) for sample in samples} == {"uint16" if names == ("flip",) else "float32"}
    windows.close()


@pytest.mark.parametrize("names", [("scale", "flip", "turn"), ("noise", "turn"), ("flip",)])
def test_windows_need_not_be_square(write_raster: WriteRaster, names: tuple[str, ...]) -> None:
    windows = TrainingWindows(
        _pair(write_raster, "a", 80, 100),
        TABLE,
        tile_px=(24, 50),
        augmentations=names,
        statistics=BandStatistics((2.0, 0.0), (1.0, 1.0)),
        seed=1,
    )
    samples = [windows.sample(0, index) for index in range(25)]
    windows.close()
    assert windows.samples_per_cover == round(80 * 100 / (24 * 50))
    assert {sample.image.shape for sample in samples} == {(2, 24, 50)}
    assert {sample.target.labels.shape for sample in samples} == {(24, 50)}
    assert len({sample.image.tobytes() for sample in samples}) > 10


def test_the_whole_picture_is_one_window(write_raster: WriteRaster) -> None:
    scenes = _pair(write_raster, "a", 80, 100)
    statistics = BandStatistics((2.0, 0.0), (1.0, 1.0))
    windows = TrainingWindows(
        scenes, TABLE, tile_px=(80, 100), augmentations=(), statistics=statistics, seed=1
    )
    with SceneReader(scenes[0].image) as reader:
        whole = reader.read(scenes[0].image.window)
    np.testing.assert_array_equal(windows.sample(0, 3).image, whole.pixels)
    assert windows.samples_per_cover == 1
    windows.close()


def test_scale_shows_more_or_less_of_the_scene(write_raster: WriteRaster) -> None:
    ramp = np.arange(200, dtype=np.float32)[None, :].repeat(200, 0)  # one step for each column
    path = write_raster("r.tif", ramp[None].repeat(2, 0))
    write_raster("r_labels.tif", np.zeros((200, 200), np.uint8))
    windows = _windows(open_scenes([str(path)], "{stem}_labels.tif"), augmentations=("scale",))
    steps = [float(np.diff(windows.sample(0, index).image[0][5, 4:28]).mean()) for index in range(200)]
    windows.close()
    assert 0.49 < min(steps) < 0.6
    assert 1.7 < max(steps) < 2.01
    assert abs(np.mean(np.log2(steps))) < 0.1


def test_shift_moves_a_picture_that_is_shown_whole_and_its_size_a_little(write_raster: WriteRaster) -> None:
    ramp = 1.0 + np.arange(100, dtype=np.float32)[None, :].repeat(100, 0)  # one step for each column
    path = write_raster("s.tif", ramp[None].repeat(2, 0))
    write_raster("s_labels.tif", np.zeros((100, 100), np.uint8))
    windows = TrainingWindows(
        open_scenes([str(path)], "{stem}_labels.tif"),
        TABLE,
        tile_px=160,
        augmentations=("shift",),
        statistics=BandStatistics((2.0, 0.0), (1.0, 1.0)),
        seed=1,
    )
    steps, begins = [], []
    for index in range(150):
        sample = windows.sample(0, index)
        row, (cols,) = sample.image[0][50], np.nonzero(sample.valid[50])
        assert not row[~sample.valid[50]].any()
        steps.append(float(np.median(np.diff(row[cols[2] : cols[-2]]))))
        begins.append(int(cols[0]) - float(row[cols[2]] - 1) * (cols[0] == 0))  # left of 0: cut
    windows.close()
    assert 0.9 < min(steps) < 0.93
    assert 1.07 < max(steps) < 1.12
    assert min(begins) < -14
    assert max(begins) > 14
    assert max(np.abs(begins)) <= 16 * 1.1 + 6
