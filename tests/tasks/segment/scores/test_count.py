"""Maps against labels, window by window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import shapely
import torch

from outsize.data.scenes import LabelledScene, label_table, open_scenes
from outsize.errors import DataError
from outsize.metrics.boundary import Tolerances, count_outlines
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.tasks.segment.scores import count as evaluate
from outsize.tasks.segment.scores.count import compare_map, compare_maps, num_windows
from outsize.tasks.segment.scores.files import MapFiles
from outsize.tiles.window import Window

WriteRaster = Callable[..., Path]
VALUES = (7, 0, 200)
TABLE = label_table(VALUES, ignore_value=99)


def _values(seed: int, shape: tuple[int, int] = (130, 170)) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.uint8(VALUES), shape)


@pytest.fixture
def scene(write_raster: WriteRaster) -> LabelledScene:
    labels = _values(1)
    labels[:20] = 99  # ignored
    labels[30:40] = 50  # nodata of the labels
    path = write_raster("a.tif", np.ones((1, 130, 170), np.uint8))
    write_raster("a_labels.tif", labels, nodata=50)
    return open_scenes([str(path)], "{stem}_labels.tif")[0]


@pytest.mark.parametrize("side_px", [64, 2048])
def test_counts_equal_numpy(
    write_raster: WriteRaster, scene: LabelledScene, monkeypatch: pytest.MonkeyPatch, side_px: int
) -> None:
    monkeypatch.setattr(evaluate, "_SIDE_PX", side_px)
    predicted = _values(2)
    predicted[:, 100:120] = 255
    map_path = write_raster("map.tif", predicted, nodata=255)
    with Reporter("quiet").bar("evaluate", num_windows(130, 170), "window") as bar:
        counts = compare_map(MapFiles(map_path), scene, TABLE, 3, bar=bar).counts
    assert bar.done == bar.total == (9 if side_px == 64 else 1)
    truth = _values(1)
    counted = np.ones(truth.shape, bool)
    counted[:20] = counted[30:40] = False
    counted[:, 100:120] = False
    expected = [[np.count_nonzero(counted & (truth == t) & (predicted == p)) for p in VALUES] for t in VALUES]
    np.testing.assert_array_equal(counts, expected)
    assert counts.sum() == counted.sum()


def test_a_map_of_another_size_is_refused(write_raster: WriteRaster, scene: LabelledScene) -> None:
    map_path = write_raster("map.tif", _values(2, (130, 171)))
    with pytest.raises(DataError, match=r"map\.tif.*found 130 x 171 px, needed 130 x 170 px"):
        compare_map(MapFiles(map_path), scene, TABLE, 3)


def test_a_map_that_is_none_is_refused(write_raster: WriteRaster, scene: LabelledScene) -> None:
    map_path = write_raster("map.tif", _values(2).astype(np.float32))
    with pytest.raises(DataError, match=r"map\.tif is no class map: found 1 bands of float32"):
        compare_map(MapFiles(map_path), scene, TABLE, 3)


def test_only_areas_of_the_split_and_the_area_of_interest_count(
    write_raster: WriteRaster, scene: LabelledScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_SIDE_PX", 64)
    areas = (Window(0, 0, 90, 50), Window(100, 60, 30, 110))
    inside = AreaOfInterest(Path("a.gpkg"), np.array([shapely.box(10, 30, 100, 120)]))
    predicted = _values(2)
    map_path = write_raster("map.tif", predicted, nodata=255)
    found = compare_map(MapFiles(map_path), replace(scene, areas=areas), TABLE, 3, inside=inside)
    counted = np.zeros((130, 170), bool)
    for area in areas:
        counted[area.slices] = True
    only_inside = np.zeros_like(counted)
    only_inside[30:120, 10:100] = True
    counted &= only_inside
    counted[:20] = counted[30:40] = False
    truth = _values(1)
    expected = [[np.count_nonzero(counted & (truth == t) & (predicted == p)) for p in VALUES] for t in VALUES]
    np.testing.assert_array_equal(found.counts, expected)
    assert counted.any()


@pytest.mark.parametrize("side_px", [64, 2048])
def test_confidence_is_counted_where_classes_are(
    write_raster: WriteRaster, scene: LabelledScene, monkeypatch: pytest.MonkeyPatch, side_px: int
) -> None:
    monkeypatch.setattr(evaluate, "_SIDE_PX", side_px)
    predicted = _values(2)
    predicted[:, 100:120] = 255
    confidence = np.random.default_rng(3).integers(0, 251, predicted.shape).astype(np.uint8)
    files = MapFiles(
        write_raster("map.tif", predicted, nodata=255), write_raster("sure.tif", confidence, nodata=255)
    )
    found = compare_map(files, scene, TABLE, 3)
    counted = np.ones(predicted.shape, bool)
    counted[:20] = counted[30:40] = False
    counted[:, 100:120] = False
    assert found.reliability is not None
    np.testing.assert_array_equal(found.reliability.num_px, np.bincount(confidence[counted], minlength=251))
    right = counted & (_values(1) == predicted)
    np.testing.assert_array_equal(found.reliability.hits, np.bincount(confidence[right], minlength=251))
    assert found.reliability.num_px.sum() == found.counts.sum()


@pytest.mark.parametrize("side_px", [32, 2048])
def test_outlines_of_windows_are_those_of_the_scene(
    write_raster: WriteRaster, monkeypatch: pytest.MonkeyPatch, side_px: int
) -> None:
    monkeypatch.setattr(evaluate, "_SIDE_PX", side_px)
    rng = np.random.default_rng(7)
    # regions of 20 x 20 px, the map a little off, both with pixels that nobody knows
    truth = np.kron(rng.choice(np.uint8(VALUES), (7, 9)), np.ones((20, 20), np.uint8))[:130, :170]
    predicted = np.roll(truth, (1, 3), (0, 1))
    truth[40:60, 40:50], predicted[100:, :30] = 99, 255
    path = write_raster("c.tif", np.ones((1, 130, 170), np.uint8))
    write_raster("c_labels.tif", truth)
    (scene,) = open_scenes([str(path)], "{stem}_labels.tif")
    files, tolerances = MapFiles(write_raster("map.tif", predicted, nodata=255)), Tolerances(40)
    maps = [torch.from_numpy(TABLE[each]) for each in (truth, np.where(predicted == 255, 99, predicted))]
    expected = count_outlines(*maps, 3, tolerances)
    found = compare_map(files, scene, TABLE, 3, tolerances=tolerances).outlines
    assert found is not None
    np.testing.assert_array_equal(found.pixels, expected.pixels)
    np.testing.assert_array_equal(found.diagonal, expected.diagonal)

    area = Window(30, 50, 60, 70)
    counted = torch.zeros(130, 170, dtype=torch.bool)
    counted[area.slices] = True
    expected = count_outlines(*maps, 3, tolerances, counted=counted)
    found = compare_map(files, replace(scene, areas=(area,)), TABLE, 3, tolerances=tolerances).outlines
    assert found is not None
    np.testing.assert_array_equal(found.diagonal, expected.diagonal)
    assert 0 < found.pixels[0, :, 2].sum() == expected.pixels[0, :, 2].sum()
    assert compare_map(files, scene, TABLE, 3).outlines is None


def test_places_are_those_of_the_scene(write_raster: WriteRaster) -> None:
    truth = np.zeros((600, 600), np.uint8)
    predicted = np.where(np.arange(600) < 256, 7, 0).astype(np.uint8)[None].repeat(600, axis=0)
    path = write_raster("b.tif", np.ones((1, 600, 600), np.uint8))
    write_raster("b_labels.tif", truth)
    (scene,) = open_scenes([str(path)], "{stem}_labels.tif")
    found = compare_map(MapFiles(write_raster("map.tif", predicted)), scene, TABLE, 3)
    # the strips of 88 px at the right and at the bottom are less than half a place
    assert {(each.window.row, each.window.col): each.accuracy for each in found.places} == {
        (0, 0): 0.0,
        (256, 0): 0.0,
        (0, 256): 1.0,
        (256, 256): 1.0,
    }
    assert found.reliability is None


def test_two_maps_with_other_values_for_the_same_classes(
    write_raster: WriteRaster, scene: LabelledScene
) -> None:
    one, two = _values(2), _values(4)
    renumbered = np.uint8([1, 2, 3])[np.searchsorted(np.sort(VALUES), two)]
    renumbered[:, :10] = 255
    paths = (write_raster("one.tif", one, nodata=255), write_raster("two.tif", renumbered, nodata=255))
    other = label_table([2, 1, 3], ignore_value=99)  # of 7, 0, 200
    counts = compare_maps(paths, (TABLE, other), scene, 3)
    assert counts.sum() == 130 * 160
    assert np.trace(counts) == np.count_nonzero((one == two)[:, 10:])
    area = Window(50, 50, 20, 30)
    inside = compare_maps(paths, (TABLE, other), replace(scene, areas=(area,)), 3)
    assert np.trace(inside) == np.count_nonzero((one == two)[area.slices])
