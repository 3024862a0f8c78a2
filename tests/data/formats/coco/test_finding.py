"""COCO files as masks of classes: TACO in miniature, with its defects, and others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.miniatures import draw_taco, photo, save, square

from outsize.data.catalogue import Survey, find_data, look_around
from outsize.data.scenes import LabelledScene
from outsize.errors import DataError, JobError, UnsafeFileError
from outsize.job import DataSection, check_job
from outsize.known.tables import class_map
from outsize.raster.reading import SceneReader


def section(root: Path, **keys: Any) -> DataSection:
    return check_job({"data": {"format": "coco", "root": str(root), **keys}}, "job").data


def survey(root: Path, **keys: Any) -> Survey:
    return look_around(section(root, **keys), seed=0, cache=root / "cache")[0]


def labels_of(scene: LabelledScene) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(scene.labels.path))


def test_taco_with_its_defects(tmp_path: Path) -> None:
    tree = draw_taco(tmp_path)
    data = section(tmp_path, class_map="taco-60", split={"val": 0.25, "test": 0.25})
    found = find_data(data, seed=0, cache=tmp_path / "cache")
    assert {split: len(paths) for split, paths in found.shared.items()} == {"train": 4, "val": 2, "test": 2}
    assert {path.suffix for path in found.scenes} == {".jpg", ".JPG"}
    values = {each.name: each.value for each in data.classes}
    for row in tree["images"]:
        path = next(path for path in found.scenes if path.stem == Path(row["file_name"]).stem)
        wanted = np.zeros((row["height"], row["width"]), np.uint8)
        for each in tree["annotations"]:
            if each["image_id"] == row["id"]:
                x, y = (int(number) for number in each["segmentation"][0][:2])
                wanted[y : y + 16, x : x + 16] = values[tree["categories"][each["category_id"]]["name"]]
        np.testing.assert_array_equal(labels_of(found.scenes[path]), wanted)


def test_a_photo_that_lies_is_read_upright(tmp_path: Path) -> None:
    draw_taco(tmp_path)
    path = tmp_path / "batch_1/000001.jpg"
    image = survey(tmp_path, class_map="taco-1").scenes[path].image
    with Image.open(path) as stored:
        assert (stored.height, stored.width) == (96, 128)
        wanted = np.moveaxis(np.asarray(ImageOps.exif_transpose(stored)), -1, 0)
    assert (image.height, image.width) == (128, 96)
    with SceneReader(image) as reader:
        np.testing.assert_array_equal(reader.read(image.window).pixels, wanted)


def test_outlines_of_a_photo_as_it_is_stored_are_turned_with_it(tmp_path: Path) -> None:
    lying = Image.Exif()
    lying[274] = 8
    pixels = np.zeros((20, 30), np.uint8)
    pixels[2:6, 3:9] = 200
    save(tmp_path / "a.png", np.dstack([pixels] * 3), exif=lying)
    write(tmp_path, [("a.png", 20, 30, [3, 2, 9, 2, 9, 6, 3, 6])])
    keys = {"classes": FIG, "outside": "ground", "split": {"val": 0, "test": 0}}
    scene = survey(tmp_path, **keys).scenes[tmp_path / "a.png"]
    with SceneReader(scene.image) as reader:
        shown = reader.read(scene.image.window).pixels[0]
    np.testing.assert_array_equal(labels_of(scene) == 1, shown == 200)
    assert labels_of(scene).shape == (30, 20)


FIG = [{"name": "ground", "value": 0}, {"name": "fig", "value": 1}]


def write(
    root: Path, pictures: list[tuple[str, int, int, list[float]]], name: str = "annotations.json"
) -> None:
    images = [
        {"id": number, "file_name": file, "height": height, "width": width}
        for number, (file, height, width, _) in enumerate(pictures)
    ]
    rows = [
        {"id": number, "image_id": number, "category_id": 1, "segmentation": [ring]}
        for number, (*_, ring) in enumerate(pictures)
    ]
    tree = {"images": images, "annotations": rows, "categories": [{"id": 1, "name": "fig"}]}
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(tree))


def pictures(root: Path, folder: str, names: str) -> list[tuple[str, int, int, list[float]]]:
    for number, name in enumerate(names):
        save(root / folder / f"{name}.jpg", photo(np.full((20, 30), number, np.uint8)))
    return [(f"{name}.jpg", 20, 30, square(2, 3, 5)) for name in names]


def test_a_file_for_each_split_and_pictures_in_folders_of_its_name(tmp_path: Path) -> None:
    for split, names in (("train2017", "abc"), ("val2017", "de")):
        write(tmp_path, pictures(tmp_path, split, names), f"annotations/instances_{split}.json")
    keys = {split: f"{tmp_path}/annotations/instances_{split}2017.json" for split in ("train", "val")}
    found = survey(tmp_path, classes=FIG, **keys)
    assert [path.stem for path in found.shared["train"]] == ["a", "b", "c"]
    assert [path.stem for path in found.shared["val"]] == ["d", "e"]
    # without `outside`, what is in no outline is ignored
    assert set(labels_of(next(iter(found.scenes.values()))).ravel()) == {1, 255}


def test_pictures_in_a_folder_beside_and_a_file_of_any_name(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, "images", "abcd"), "trainval.json")
    found = survey(tmp_path, labels="trainval.json", classes=FIG, outside="ground")
    assert len(found.scenes) == 4


def test_a_category_goes_by_the_attribute_of_a_class(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, ".", "abcd"))
    classes = [FIG[0], {"name": "Feige", "value": 9, "attribute": "fig"}]
    assert 9 in labels_of(next(iter(survey(tmp_path, classes=classes).scenes.values())))


def test_a_category_without_class_is_told_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, ".", "abcd"))
    classes = [FIG[0], {"name": "figs", "value": 1}]
    with pytest.raises(JobError, match=r"has no class: found 'fig', not in data.classes.*nearest: 'figs'"):
        survey(tmp_path, classes=classes)
    with pytest.raises(JobError, match=r"found 'fig', not in class map taco-10"):
        survey(tmp_path, class_map="taco-10")


def test_a_map_may_leave_categories_to_the_background(tmp_path: Path) -> None:
    tree = draw_taco(tmp_path)
    found = survey(tmp_path, class_map="taco-2")
    names = {
        each["category_id"]: tree["categories"][each["category_id"]]["name"] for each in tree["annotations"]
    }
    wanted = {"Bottle": 1, "Can": 2, "Background": 0}
    assert {wanted[class_map("taco-2")[name.lower()]] for name in names.values()} == {0, 1, 2}
    assert set(np.concatenate([labels_of(scene).ravel() for scene in found.scenes.values()])) == {0, 1, 2}


def test_taco_without_its_pictures_says_how_to_get_them(tmp_path: Path) -> None:
    draw_taco(tmp_path)
    shutil.rmtree(tmp_path / "batch_1")
    fault = str(survey(tmp_path, class_map="taco-10").faults[0])
    for text in ("8 of 8 not below", "batch_1/000000.jpg", "download.py", "zenodo", str(tmp_path)):
        assert text in fault


def test_some_pictures_are_missing(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, ".", "abcd"))
    (tmp_path / "b.jpg").unlink()
    fault = str(survey(tmp_path, classes=FIG).faults[0])
    assert "1 of 4 not below" in fault
    assert "b.jpg" in fault
    assert "TACO" not in fault


def test_a_picture_of_another_size(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, ".", "abcd"))
    save(tmp_path / "c.jpg", photo(np.zeros((10, 15), np.uint8)))
    (fault,) = survey(tmp_path, classes=FIG).faults
    assert "c.jpg does not fit its outlines" in str(fault)
    assert "found 10 x 15 px, needed 20 x 30 px" in str(fault)


def test_a_broken_picture_is_set_aside(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, ".", "abcd"))
    (tmp_path / "c.jpg").write_bytes(b"nothing")
    found = survey(tmp_path, classes=FIG)
    assert [bad.path.name for bad in found.corrupt] == ["c.jpg"]


def test_runs_that_do_not_fit(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, ".", "abcd"))
    tree = json.loads((tmp_path / "annotations.json").read_text())
    tree["annotations"][0]["segmentation"] = {"size": [20, 30], "counts": [5, 5]}
    (tmp_path / "annotations.json").write_text(json.dumps(tree))
    (fault,) = survey(tmp_path, classes=FIG).faults
    assert "a mask of" in str(fault)
    assert "runs of 10 pixels for 20 x 30" in str(fault)


def test_names_that_point_elsewhere_are_refused(tmp_path: Path) -> None:
    found = pictures(tmp_path, "data", "abcd")
    write(tmp_path / "data", [(f"../data/{name}", *rest) for name, *rest in found])
    with pytest.raises(UnsafeFileError, match=r"points outside its folder: found ../data/a.jpg"):
        survey(tmp_path / "data", classes=FIG)
    assert len(survey(tmp_path / "data", classes=FIG, allow_references=True).scenes) == 4


def test_blocks_are_for_large_scenes(tmp_path: Path) -> None:
    write(tmp_path, pictures(tmp_path, ".", "abcd"))
    with pytest.raises(JobError, match=r"data.split.by is not for coco: found 'blocks'"):
        survey(tmp_path, classes=FIG, split={"by": "blocks"})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"annotations.json cannot be read: found No such file"):
        survey(tmp_path, classes=FIG)
