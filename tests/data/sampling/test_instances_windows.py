"""Training windows with objects: whole ones as they are, cut ones marked, nothing learnt where nobody knows."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.data.instances_pictures import PLACES, SIZE, draw_coco, draw_ids, draw_masks, draw_scene, section

from outsize.data.catalogue import find_data, make_splits
from outsize.data.checking.objects import count_objects, most_in_window
from outsize.data.object import Object
from outsize.data.object_files import ObjectFiles, hold
from outsize.data.pixels.augmentations import augment
from outsize.data.pixels.sizes import resize
from outsize.data.sample import IGNORE, Sample
from outsize.data.sampling.blocks import index_blocks
from outsize.data.sampling.draw import EpochMix
from outsize.data.sampling.windows import TrainingWindows
from outsize.data.scenes import LabelledScene, label_table
from outsize.data.split import Splits
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRaster, ObjectList
from outsize.job import DataSection
from outsize.tiles.window import Window

STATISTICS = BandStatistics((0.0,) * 3, (1.0,) * 3)


def windows_of(
    scenes: list[LabelledScene], data: DataSection, tile_px: int, **options: object
) -> TrainingWindows:
    table = label_table([each.value for each in data.classes], data.ignore_value)
    defaults = {"augmentations": (), "statistics": STATISTICS, "seed": 1}
    return TrainingWindows(scenes, table, tile_px=tile_px, **{**defaults, **options})  # type: ignore[arg-type]


@pytest.fixture
def masked(tmp_path: Path) -> tuple[list[LabelledScene], DataSection]:
    draw_masks(tmp_path / "data", 4)
    data = section("house", "side-road", format="masks", root=str(tmp_path / "data"), labels="")
    return list(find_data(data, seed=0, cache=tmp_path / "cache").scenes.values()), data


def test_a_window_that_holds_the_picture_holds_all_objects(
    masked: tuple[list[LabelledScene], DataSection],
) -> None:
    scenes, data = masked
    windows = windows_of(scenes, data, 80)
    sample = windows.sample(0, 0)
    found = {(each.window.row, each.window.col, each.clipped) for each in sample.target.objects}
    assert found == {(place.row, place.col, False) for place in PLACES}
    windows.close()


def test_windows_tell_what_their_border_cuts(masked: tuple[list[LabelledScene], DataSection]) -> None:
    scenes, data = masked
    windows = windows_of(scenes, data, 24)
    num_clipped, num_whole, num_empty = 0, 0, 0
    whole_px = {0: {place.num_px for place in PLACES[1:]}, 1: {PLACES[0].num_px}}
    for index in range(60):
        sample = windows.sample(0, index)
        painted = np.full((24, 24), IGNORE, np.uint8)
        for each in sample.target.objects:
            assert (each.num_px in whole_px[each.class_id]) != each.clipped
            painted[each.window.slices][each.mask] = each.class_id
        assert np.array_equal(painted, sample.target.raster.labels)
        num_clipped += sum(each.clipped for each in sample.target.objects)
        num_whole += sum(not each.clipped for each in sample.target.objects)
        num_empty += not sample.target.objects
    assert min(num_clipped, num_whole, num_empty) > 3
    windows.close()


def test_empty_windows_are_kept_to_their_share(masked: tuple[list[LabelledScene], DataSection]) -> None:
    scenes, data = masked
    table = label_table([1, 2], 255)
    index = index_blocks(scenes, table, 2, block_px=8, num_threads=1)
    windows = windows_of(scenes, data, 16, mix=EpochMix(empty_share=0.1), index=index)
    num_empty = sum(not windows.sample(0, number).target.objects for number in range(100))
    assert num_empty < 25
    free = windows_of(scenes, data, 16)
    assert sum(not free.sample(0, number).target.objects for number in range(100)) > 25
    rare = windows_of(scenes, data, 16, mix=EpochMix(rare_share=1.0), index=index)
    assert all(
        any(each.class_id == 1 for each in rare.sample(0, number).target.objects) for number in range(20)
    )


@pytest.mark.parametrize("names", [("flip",), ("turn",), ("flip", "turn", "scale")])
def test_objects_change_with_their_pixels(
    masked: tuple[list[LabelledScene], DataSection], names: tuple[str, ...]
) -> None:
    scenes, data = masked
    windows = windows_of(scenes, data, 40, augmentations=names)
    seen = set()
    for index in range(30):
        sample = windows.sample(0, index)
        painted = np.full((40, 40), IGNORE, np.uint8)
        for each in sample.target.objects:
            painted[each.window.slices][each.mask] = each.class_id
        assert np.array_equal(painted, sample.target.raster.labels)
        seen.add(len(sample.target.objects))
    assert len(seen) > 1
    windows.close()


def test_the_same_sample_in_another_process(masked: tuple[list[LabelledScene], DataSection]) -> None:
    scenes, data = masked
    windows = windows_of(scenes, data, 40, augmentations=("flip", "turn"))
    first = windows.sample(2, 5)
    files = pickle.loads(pickle.dumps(ObjectFiles()))
    assert isinstance(files, ObjectFiles)
    again = windows_of(scenes, data, 40, augmentations=("flip", "turn")).sample(2, 5)
    assert [each.window for each in first.target.objects] == [each.window for each in again.target.objects]


def test_a_crowd_is_blanked_out(tmp_path: Path) -> None:
    draw_coco(tmp_path / "data")
    data = section(
        "house", "side-road", format="coco", root=str(tmp_path / "data"), labels="annotations.json"
    )
    scenes = list(find_data(data, seed=0, cache=tmp_path / "cache").scenes.values())
    sample = windows_of(scenes, data, 64).sample(0, 0)
    crowd = PLACES[2].slices
    assert not sample.valid[crowd].any()
    assert not sample.image[(slice(None), *crowd)].any()
    assert sample.valid[: SIZE[0]].sum() == SIZE[0] * SIZE[1] - PLACES[2].num_px
    assert len(sample.target.objects) == 2


def test_nothing_is_learnt_outside_of_a_split(tmp_path: Path) -> None:
    draw_scene(tmp_path)
    keys = {"images": (str(tmp_path / "scene.tif"),), "labels": "{stem}.geojson", "attribute": "kind"}
    split = {"by": "blocks", "block_px": 32, "gap_px": 4, "val": 0.0, "test": 0.4}
    data = section("house", "side-road", split=split, **keys)
    splits = make_splits(find_data(data, seed=0, cache=tmp_path / "cache"), data, seed=0, halo_px=0)
    windows = windows_of(list(splits.train), data, 96)
    inside = np.zeros((128, 160), np.bool_)
    for area in splits.train[0].areas:
        inside[area.slices] = True
    sample = windows.sample(0, 0)
    assert 0 < sample.valid.sum() < inside.sum() + 1
    assert all(sample.valid[each.window.slices][each.mask].all() for each in sample.target.objects)
    assert not sample.image[:, ~sample.valid].any()


def test_a_smaller_reading_has_smaller_objects(tmp_path: Path) -> None:
    draw_ids(tmp_path / "data")
    keys = {"format": "folders", "images": str(tmp_path / "data/images/*.png"), "shrink": 2}
    data = section("cell", labels="../labels/{stem}.png", **keys)
    scenes = list(find_data(data, seed=0, cache=tmp_path / "cache").scenes.values())
    sample = windows_of(scenes, data, 32).sample(0, 0)
    sizes = sorted((each.window.height, each.window.width) for each in sample.target.objects)
    assert sizes == [(4, 4), (5, 6), (5, 7)]


def test_resize_scales_objects() -> None:
    mask = np.ones((4, 4), np.bool_)
    image, valid = np.zeros((1, 16, 16), np.float32), np.ones((16, 16), np.bool_)
    sample = Sample(
        image,
        valid,
        ObjectList(ClassRaster(np.zeros((16, 16), np.uint8)), (Object(0, Window(4, 8, 4, 4), mask),)),
    )
    assert resize(sample, 8).target.objects[0].window == Window(2, 4, 2, 2)
    rng = np.random.default_rng(0)
    assert (
        augment(sample, ("noise",), rng, BandStatistics((0.0,), (1.0,))).target.objects
        == sample.target.objects
    )


def test_counts_and_the_worst_case(tmp_path: Path) -> None:
    draw_coco(tmp_path / "data")
    data = section(
        "house", "side-road", format="coco", root=str(tmp_path / "data"), labels="annotations.json"
    )
    scenes = tuple(find_data(data, seed=0, cache=tmp_path / "cache").scenes.values())
    counts = count_objects(Splits(scenes[:3], (), scenes[3:]), 2)
    assert counts is not None
    assert counts.of_class == {"train": [3, 3], "val": [0, 0], "test": [1, 1]}
    assert (counts.most, counts.num_lost) == (2, 1)
    assert most_in_window(scenes, 48) == 2
    assert most_in_window([], 48) == 0


@pytest.mark.parametrize("side_px", [16, 40, 100])
def test_no_window_holds_more_than_the_worst_case(side_px: int) -> None:
    from outsize.data.checking.objects import _most_in

    rng = np.random.default_rng(side_px)
    objects = []
    for _ in range(60):
        row, col = (int(each) for each in rng.integers(0, 300, 2))
        height, width = (int(each) for each in rng.integers(1, 30, 2))
        objects.append(Object(0, Window(row, col, height, width), np.ones((height, width), np.bool_)))
    held = hold(objects)
    found = max(
        int(np.count_nonzero(held.touching(Window(row, col, side_px, side_px))))
        for row in range(-20, 320, 3)
        for col in range(-20, 320, 3)
    )
    assert found <= _most_in(held, side_px) <= found + 6
