"""CamVid as it is distributed: in colours, in class numbers, and in part."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.miniatures import draw_camvid_colours, draw_camvid_index, save

from outsize.data.catalogue import Survey, look_around
from outsize.data.formats.camvid import classes_of_colours
from outsize.errors import DataError
from outsize.job import check_job
from outsize.known.tables import table


def survey(root: Path, **keys: object) -> Survey:
    data = check_job({"data": {"format": "camvid", "root": str(root), **keys}}, "job").data
    return look_around(data, seed=0, cache=root / "cache")[0]


def test_colours_become_classes_once(tmp_path: Path) -> None:
    draw_camvid_colours(tmp_path)
    found = survey(tmp_path, split={"val": 0.25, "test": 0.25})
    assert {split: len(paths) for split, paths in found.shared.items()} == {"train": 4, "val": 2, "test": 2}
    of_colour = {
        tuple(c): each["value"] for each in table("camvid")["classes"] for c in each["members"].values()
    }
    for path, scene in found.scenes.items():
        colours = np.asarray(Image.open(tmp_path / f"LabeledApproved_full/{path.stem}_L.png"))
        wanted = [of_colour.get(tuple(pixel), 11) for pixel in colours.reshape(-1, 3).tolist()]
        np.testing.assert_array_equal(np.asarray(Image.open(scene.labels.path)).ravel(), wanted)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert len(before) == 8
    survey(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before


@pytest.mark.parametrize(
    ("pictures", "masks"), [("{}/images", "{}/labels"), ("{}", "{}annot"), ("{}", "{}_labels")]
)
def test_class_numbers_are_read_as_they_are(tmp_path: Path, pictures: str, masks: str) -> None:
    draw_camvid_index(tmp_path, pictures, masks)
    found = survey(tmp_path)
    assert {split: len(paths) for split, paths in found.shared.items()} == {"train": 4, "val": 2, "test": 0}
    assert not (tmp_path / "cache").exists()
    assert {scene.labels.path.parent for scene in found.scenes.values()} == {
        tmp_path / masks.format(split) for split in ("train", "val")
    }


def test_an_unknown_colour_is_told_with_its_place(tmp_path: Path) -> None:
    colours = np.zeros((4, 6, 3), np.uint8)
    colours[2, 3] = (64, 0, 129)
    with pytest.raises(DataError, match=r"x_L.png: found colour 64, 0, 129 at row 2, column 3"):
        classes_of_colours(Path("x_L.png"), colours)


def test_labels_changed_on_disk_are_made_anew(tmp_path: Path) -> None:
    draw_camvid_colours(tmp_path)
    scene = next(iter(survey(tmp_path).scenes.values()))
    source = tmp_path / f"LabeledApproved_full/{scene.image.path.stem}_L.png"
    save(source, np.full((96, 128, 3), 128, np.uint8))
    survey(tmp_path)
    assert set(np.asarray(Image.open(scene.labels.path)).ravel()) == {0}


def test_half_downloaded(tmp_path: Path) -> None:
    draw_camvid_colours(tmp_path)
    (tmp_path / "LabeledApproved_full/0001TP_006720_L.png").unlink()
    (tmp_path / "701_StillsRaw_full/0001TP_006750.png").unlink()
    labels, pictures = survey(tmp_path).faults
    assert "labels are missing: found none of 0001TP_006720" in str(labels)
    assert "pictures are missing: found none of 0001TP_006750" in str(pictures)
    shutil.rmtree(tmp_path / "LabeledApproved_full")
    assert "found 701_StillsRaw_full, needed one of" in str(survey(tmp_path).faults[0])


def test_no_validation(tmp_path: Path) -> None:
    draw_camvid_index(tmp_path)
    shutil.rmtree(tmp_path / "val")
    assert "nothing for val" in str(survey(tmp_path).faults[0])


def test_no_folder(tmp_path: Path) -> None:
    assert "no such folder" in str(survey(tmp_path / "nowhere").faults[0])
