"""Where windows are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outsize.data.sampling.blocks import index_blocks
from outsize.data.sampling.draw import EpochMix, Places, SampleCounts, rare_classes
from outsize.data.scenes import LabelledScene, label_table, open_scenes
from outsize.tiles.window import Window

WriteRaster = Callable[..., Path]
TABLE = label_table([0, 1, 2], ignore_value=255)


def _scene(
    write_raster: WriteRaster, name: str, labels: np.ndarray, areas: tuple[Window, ...] = ()
) -> LabelledScene:
    path = write_raster(f"{name}.tif", np.ones(labels.shape, np.uint8))
    write_raster(f"{name}_labels.tif", labels.astype(np.uint8))
    return replace(open_scenes([str(path)], "{stem}_labels.tif")[0], areas=areas)


def _places(*scenes: LabelledScene) -> Places:
    return Places(scenes, index_blocks(scenes, TABLE, 3, block_px=8, num_threads=1))


def test_anywhere_is_by_area_and_evenly_inside_it(write_raster: WriteRaster) -> None:
    large, small = Window(10, 4, 60, 80), Window(72, 0, 8, 90)
    scenes = (
        _scene(write_raster, "a", np.zeros((80, 90)), (large, small)),
        _scene(write_raster, "b", np.zeros((40, 60))),
    )
    places, rng = Places(scenes), np.random.default_rng(0)
    drawn = [places.anywhere(rng, 16) for _ in range(4000)]
    in_large = [place for place in drawn if place.scene == 0 and place.window.row <= 54]
    in_small = [place for place in drawn if place.scene == 0 and place.window.row > 54]
    shares = np.array([len(in_large), len(in_small), sum(place.scene == 1 for place in drawn)]) / 4000
    np.testing.assert_allclose(shares, np.array([4800, 720, 2400]) / 7920, atol=0.03)
    assert places.num_px == 7920
    rows = [place.window.row for place in in_large]
    assert (min(rows), max(rows)) == (10, 70 - 16)
    assert abs(np.mean(rows) - 32) < 1.5
    assert all(place.window.intersect(large) == place.window for place in in_large)
    assert {place.window.row for place in in_small} == {72 - 4}  # centred on what is lower than it


def test_a_window_that_covers_its_scene_begins_with_it_as_in_prediction(write_raster: WriteRaster) -> None:
    scenes = (_scene(write_raster, "a", np.zeros((27, 61))), _scene(write_raster, "b", np.zeros((40, 90))))
    places, rng = Places(scenes), np.random.default_rng(0)
    drawn = [places.anywhere(rng, (32, 64)) for _ in range(200)]
    assert {(each.window.row, each.window.col) for each in drawn if each.scene == 0} == {(0, 0)}
    assert len({(each.window.row, each.window.col) for each in drawn if each.scene == 1}) > 50


def test_a_window_at_a_rare_class_holds_its_block(write_raster: WriteRaster) -> None:
    labels = np.zeros((200, 200))
    labels[100:, :100] = 1
    labels[41, 57], labels[190, 3] = 2, 2  # two pixels of 40,000
    scene = _scene(write_raster, "a", labels)
    places, rng = _places(scene), np.random.default_rng(0)
    seen, columns = np.zeros(3), set()
    for _ in range(600):
        window = places.at_rare(rng, 32).window
        assert window.intersect(scene.image.window) == window
        present = np.unique(labels[window.slices]).astype(int)
        seen[present] += 1
        if window.row < 100:
            columns.add(window.col)
    # of four equal parts one is class 1 and nearly three are class 0: classes 1 and 2 are rare, drawn half and half
    assert 0.4 < seen[2] / 600 < 0.6
    assert seen[1:].max() <= 600
    assert max(columns) - min(columns) >= 20  # and the pixel is anywhere in its window


def test_a_block_is_drawn_by_how_much_of_the_class_it_has(write_raster: WriteRaster) -> None:
    labels = np.zeros((16, 320))
    labels[0:8, 0:8] = 1  # 64 pixels
    labels[0:4, 200:204] = 1  # 16 pixels
    places, rng = _places(_scene(write_raster, "a", labels)), np.random.default_rng(0)
    left = np.mean([places.at_rare(rng, 16).window.col < 100 for _ in range(2000)])
    assert left == pytest.approx(0.8, abs=0.03)


def test_rare_windows_stay_in_their_area(write_raster: WriteRaster) -> None:
    labels = np.zeros((64, 64))
    labels[30:34] = 1
    area = Window(20, 8, 24, 40)
    places, rng = _places(_scene(write_raster, "a", labels, (area,))), np.random.default_rng(0)
    for side in (4, 16, 24):
        for _ in range(50):
            window = places.at_rare(rng, side).window
            assert window.intersect(area) == window
            assert side < 16 or labels[window.slices].any()
    assert places.at_rare(rng, 40).window == Window(12, 8, 40, 40)


def test_mixed_windows_have_several_classes(write_raster: WriteRaster) -> None:
    labels = np.zeros((400, 400))
    labels[50:, 333:] = 1  # one straight border, inside a block
    places, rng = _places(_scene(write_raster, "a", labels)), np.random.default_rng(0)
    for _ in range(200):
        window = places.at_mixed(rng, 16).window
        assert len(np.unique(labels[window.slices])) == 2


def test_without_a_mixed_block_any_place_will_do(write_raster: WriteRaster) -> None:
    scenes = [_scene(write_raster, name, np.full((16, 16), value)) for name, value in (("a", 0), ("b", 1))]
    places, rng = _places(*scenes), np.random.default_rng(0)
    assert {places.at_mixed(rng, 8).scene for _ in range(40)} == {0, 1}


@pytest.mark.parametrize(
    ("num_px", "rare"),
    [
        ([90, 10, 0], [1]),
        ([60, 30, 10], [1, 2]),
        ([50, 50, 0], [0, 1]),
        ([0, 7, 0], [1]),
        ([40, 40, 20], [2]),
    ],
)
def test_rare_is_less_than_an_equal_share_of_what_occurs(num_px: list[int], rare: list[int]) -> None:
    assert rare_classes(np.array(num_px)) == rare


def test_an_index_is_needed_for_a_mix_only() -> None:
    assert not EpochMix().needs_index
    assert EpochMix(rare_share=0.1).needs_index
    assert EpochMix(empty_share=0.9).needs_index


def test_what_was_seen() -> None:
    seen = SampleCounts(("a", "b", "c"))
    assert seen.as_dict() == {"one_class_share": 0.0, "class_shares": {"a": 0.0, "b": 0.0, "c": 0.0}}
    seen.add(seen.counted(np.array([[6, 0, 2], [4, 0, 0]])))
    seen.add(seen.counted(np.array([[0, 0, 0], [1, 6, 1]])))
    expected = {"one_class_share": 0.5, "class_shares": {"a": 0.55, "b": 0.3, "c": 0.15}}
    assert seen.as_dict() == expected
    seen.clear()
    seen.add(seen.counted(np.array([[0, 5, 0]])))
    assert seen.as_dict() == {"one_class_share": 1.0, "class_shares": {"a": 0.0, "b": 1.0, "c": 0.0}}
