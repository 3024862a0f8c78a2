"""Cityscapes as it is distributed, whole and in part."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.miniatures import draw_cityscapes, save

from outsize.data.catalogue import Survey, find_data, look_around
from outsize.data.checking.check import check_data, open_and_count
from outsize.data.formats.cityscapes import find_cityscapes
from outsize.data.recall import recall_scenes
from outsize.data.sample import IGNORE
from outsize.data.scenes import label_table, read_labels
from outsize.data.split import Splits, write_split
from outsize.errors import DataError, JobError
from outsize.job import DataSection, check_job
from outsize.progress import Reporter
from outsize.raster.reading import SceneReader


def section(root: Path, **keys: object) -> DataSection:
    return check_job({"data": {"format": "cityscapes", "root": str(root), **keys}}, "job").data


def survey(root: Path, **keys: object) -> Survey:
    return look_around(section(root, **keys), seed=0, cache=root / "cache")[0]


def test_train_and_val_with_train_ids_for_classes(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    data = section(tmp_path)
    found = find_data(data, seed=0, cache=tmp_path / "cache")
    assert {split: len(paths) for split, paths in found.shared.items()} == {"train": 4, "val": 2, "test": 0}
    path, scene = next(iter(found.scenes.items()))
    assert scene.labels.path.name == path.name.replace("_leftImg8bit", "_gtFine_labelIds")
    with SceneReader(scene.labels) as reader:
        classes = read_labels(
            reader, scene.labels.window, label_table([each.value for each in data.classes], data.ignore_value)
        )
    ids = np.asarray(Image.open(scene.labels.path))
    assert set(classes[ids == 7]) == {0}
    assert set(classes[ids == 33]) == {18}
    assert set(classes[np.isin(ids, (0, 4, 9, 29, 34))]) == {IGNORE}
    assert not (tmp_path / "cache").exists()


def test_archives_may_be_unpacked_into_folders_of_their_own(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    for kind in ("leftImg8bit", "gtFine"):
        (tmp_path / f"{kind}_trainvaltest").mkdir()
        (tmp_path / kind).rename(tmp_path / f"{kind}_trainvaltest" / kind)
    assert len(survey(tmp_path).scenes) == 6


def test_coarse_labels_train_and_fine_ones_validate(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    found = survey(tmp_path, labels="gtCoarse")
    kinds = [
        found.scenes[path].labels.path.name for split in ("train", "val") for path in found.shared[split]
    ]
    assert ["Coarse" in kind for kind in kinds] == [True] * 4 + [False] * 2
    assert "train_extra are not there" in found.notes[0]
    for split, kind in (("leftImg8bit", "leftImg8bit.png"), ("gtCoarse", "gtCoarse_labelIds.png")):
        shutil.copytree(tmp_path / split / "train/ulm", tmp_path / split / "train_extra/ulm")
        assert list((tmp_path / split / "train_extra/ulm").glob(f"*{kind}"))
    assert len(survey(tmp_path, labels="gtCoarse").shared["train"]) == 6


def test_unknown_labels(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"found 'gtFin', needed one of gtFine, gtCoarse; correct data.labels"):
        find_cityscapes(section(tmp_path, labels="gtFin"), 0)


def test_a_half_downloaded_dataset_lists_what_is_missing(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    shutil.rmtree(tmp_path / "gtFine")
    (tmp_path / "gtFine_trainvaltest.zip").write_bytes(b"PK")
    faults = survey(tmp_path).faults
    assert len(faults) == 1
    for text in ("no gtFine/train, no gtFine/val", "unpack gtFine_trainvaltest.zip", str(tmp_path)):
        assert text in str(faults[0])
    shutil.rmtree(tmp_path / "leftImg8bit")
    (tmp_path / "gtFine_trainvaltest.zip").unlink()
    assert "https://www.cityscapes-dataset.com" in str(survey(tmp_path).faults[0])
    assert "no leftImg8bit/val" in str(survey(tmp_path).faults[0])


def test_labels_and_pictures_without_each_other_are_listed(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    (tmp_path / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png").unlink()
    shutil.rmtree(tmp_path / "leftImg8bit/train/ulm")
    labels, pictures = survey(tmp_path).faults
    assert "labels of train are missing: found none of 1 in gtFine/train: aachen/aachen_000000_000019" in str(
        labels
    )
    assert "pictures of train are missing: found none of 2 in leftImg8bit/train: all of ulm" in str(pictures)
    with pytest.raises(DataError, match="labels of train are missing"):
        find_data(section(tmp_path), seed=0, cache=tmp_path)


def test_a_part_of_the_dataset_is_noted_and_its_absent_classes_too(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    data = section(tmp_path)
    found, known = open_and_count(
        data, seed=0, cache=tmp_path / "cache", num_threads=1, reporter=Reporter("quiet")
    )
    splits = Splits(
        **{split: tuple(found.scenes[path] for path in paths) for split, paths in found.shared.items()},
        notes=found.notes,
    )
    counted = check_data(data, splits, num_threads=1, known=known)
    texts = [problem.text for problem in counted.problems]
    assert not any(problem.fatal for problem in counted.problems)
    assert any(
        "train is a part of Cityscapes, 4 of 2975 pictures: aachen (2 of 174), bochum (0 of 96)" in t
        for t in texts
    )
    ids = [np.asarray(Image.open(scene.labels.path)) for scene in splits.train]
    wanted = [sum(int((each == spec.value).sum()) for each in ids) for spec in data.classes]
    assert counted.class_px["train"].tolist() == wanted


def test_a_wrong_label_id_is_told_with_its_place(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    path = tmp_path / "gtFine/val/lindau/lindau_000000_000020_gtFine_labelIds.png"
    labels = np.array(Image.open(path))
    labels[3, 5] = 77
    save(path, labels)
    _, known = open_and_count(
        section(tmp_path), seed=0, cache=tmp_path / "cache", num_threads=1, reporter=Reporter("quiet")
    )
    faults = [tally.fault for tally in known.values() if tally.fault]
    assert len(faults) == 1
    assert "found 77 at row 3, column 5" in faults[0]
    assert str(path) in faults[0]


def test_pictures_and_labels_at_half_their_size(tmp_path: Path) -> None:
    draw_cityscapes(tmp_path)
    data = section(tmp_path, shrink=2)
    found, known = open_and_count(
        data, seed=0, cache=tmp_path / "cache", num_threads=1, reporter=Reporter("quiet")
    )
    path, scene = next(iter(found.scenes.items()))
    assert (scene.image.height, scene.image.width, scene.labels.height) == (48, 64, 48)
    ids = np.asarray(Image.open(scene.labels.path))[1::2, 1::2]
    assert known[path].blocks.sum((0, 1)).tolist() == [
        int((ids == each.value).sum()) for each in data.classes
    ]
    splits = Splits(train=(scene,), val=(), test=())
    write_split(tmp_path / "split.json", splits)
    assert recall_scenes(tmp_path / "split.json", "train", data) == (scene,)
