"""Scenes with labels beside them: found, matched, and read as class indices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outsize.data.sample import IGNORE
from outsize.data.scenes import find_images, label_table, labels_path, open_scenes, read_labels
from outsize.errors import DataError
from outsize.raster.reading import SceneReader, describe
from outsize.tiles.window import Window

WriteRaster = Callable[..., Path]
LABELS = "{stem}_labels.tif"
IMAGE = np.ones((2, 20, 30), np.uint8)


def test_patterns_pass_over_label_files(write_raster: WriteRaster, tmp_path: Path) -> None:
    for stem in ("b", "a", "a_labels", "b_labels"):
        write_raster(f"{stem}.tif", IMAGE)
    found = find_images([f"{tmp_path}/*.tif", f"{tmp_path}/a.tif"], LABELS)
    assert found == (tmp_path / "a.tif", tmp_path / "b.tif")  # sorted, and each once


def test_labels_named_by_the_whole_file_name_are_passed_over_too(tmp_path: Path) -> None:
    for name in ("a.tif", "labels-a.tif.tif"):
        (tmp_path / name).touch()
    pattern = "labels-{name}.tif"
    assert labels_path(tmp_path / "a.tif", pattern) == tmp_path / "labels-a.tif.tif"
    assert find_images([f"{tmp_path}/*.tif"], pattern) == (tmp_path / "a.tif",)


def test_a_pattern_without_images_is_named(tmp_path: Path) -> None:
    (tmp_path / "x_labels.tif").touch()
    with pytest.raises(DataError, match=r"nothing at .*\*\.tif"):
        find_images([f"{tmp_path}/*.tif"], LABELS)


@pytest.mark.parametrize("pattern", ["?" * 300, "[a]" * 200, "x/*" + "b" * 300])
def test_a_pattern_longer_than_any_name_finds_nothing(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(DataError, match="no image found"):
        find_images([f"{tmp_path}/{pattern}"], LABELS)


def test_labels_of_another_size_are_refused(write_raster: WriteRaster) -> None:
    path = write_raster("a.tif", IMAGE)
    write_raster("a_labels.tif", np.zeros((20, 31), np.uint8))
    with pytest.raises(DataError, match=r"a_labels\.tif.*found 20 x 31 px, needed 20 x 30 px"):
        open_scenes([str(path)], LABELS)


def test_missing_labels_are_named(write_raster: WriteRaster) -> None:
    path = write_raster("a.tif", IMAGE)
    with pytest.raises(DataError, match=r"a_labels\.tif cannot be read"):
        open_scenes([str(path)], LABELS)


def test_label_values_need_not_be_contiguous(write_raster: WriteRaster) -> None:
    values = np.uint8([[7, 200, 0], [99, 7, 200]])
    info = describe(write_raster("l.tif", values))
    with SceneReader(info) as reader:
        classes = read_labels(reader, info.window, label_table([200, 7, 0], ignore_value=99))
    assert classes.tolist() == [[1, 0, 2], [IGNORE, 1, 0]]


@pytest.mark.parametrize("values", [[0, 1, 2], [0, 255, 2], [7, 0, 1], [254, 2, 1]])
def test_values_that_are_classes_are_read_like_all_others(
    values: list[int], write_raster: WriteRaster
) -> None:
    info = describe(write_raster("l.tif", np.uint8([values])))
    known = {0: 0, 1: 1, 2: 2, 255: IGNORE}
    with SceneReader(info) as reader:
        if set(values) <= set(known):
            classes = read_labels(reader, info.window, label_table([0, 1, 2], ignore_value=255))
            assert classes.tolist() == [[known[each] for each in values]]
            # what is ignored may also be a class in other labels
            shifted = read_labels(reader, info.window, label_table([2, 1, 0, 255], ignore_value=9))
            assert shifted.tolist() == [[{2: 0, 1: 1, 0: 2, 255: 3}[each] for each in values]]
        else:
            with pytest.raises(DataError, match=rf"found {max(values)} at row 0, column 0"):
                read_labels(reader, info.window, label_table([0, 1, 2], ignore_value=255))


def test_nodata_of_the_labels_and_the_outside_are_ignored(write_raster: WriteRaster) -> None:
    info = describe(write_raster("l.tif", np.uint8([[0, 1], [5, 1]]), nodata=5))
    with SceneReader(info) as reader:
        classes = read_labels(reader, Window(0, 0, 3, 3), label_table([0, 1], ignore_value=255))
    assert classes.tolist() == [[0, 1, IGNORE], [IGNORE, 1, IGNORE], [IGNORE] * 3]


def test_an_unknown_value_is_named_with_its_place(write_raster: WriteRaster) -> None:
    values = np.zeros((9, 9), np.uint8)
    values[6, 4] = 42
    info = describe(write_raster("l.tif", values))
    with (
        SceneReader(info) as reader,
        pytest.raises(DataError, match=r"l\.tif: found 42 at row 6, column 4, needed one of \[0, 3\]"),
    ):
        read_labels(reader, Window(2, 2, 7, 7), label_table([0, 3], ignore_value=255))


def test_values_that_no_class_can_have_are_refused(write_raster: WriteRaster) -> None:
    info = describe(write_raster("l.tif", np.int16([[0, -1], [300, 1]])))
    with SceneReader(info) as reader, pytest.raises(DataError, match=r"found -1 to 300, needed 0 to 255"):
        read_labels(reader, info.window, label_table([0, 1], ignore_value=255))


def test_a_pattern_of_the_whole_disk_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outsize.files.walk.MAX_NAMES", 2000)
    for pattern in ("/**/*", "/**/*.none", "/**/**/*.tif"):
        with pytest.raises(
            DataError, match=r"looks through too much: found more than 2,000 files and folders"
        ):
            find_images([pattern], LABELS)
