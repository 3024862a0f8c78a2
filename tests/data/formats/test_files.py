"""All files of a job's data: what belongs to an image by its name comes along, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.data.formats import files_of
from outsize.errors import DataError
from outsize.job import DataSection, check_job

_CLASSES = [{"name": "a", "value": 0}, {"name": "b", "value": 1}]


def _data(**keys: object) -> DataSection:
    return check_job({"data": {**keys, "classes": _CLASSES}}, "job").data


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def _names(data: DataSection, folder: Path) -> set[str]:
    return {each.relative_to(folder).as_posix() for each in files_of(data, 0)}


def test_images_with_labels_and_what_is_named_like_them(tmp_path: Path) -> None:
    wanted = {"a.tif", "a.tfw", "a.tif.aux.xml", "b.tif", "masks/a.png", "masks/b.png", "masks/b.png.aux.xml"}
    _touch(tmp_path, *wanted, "c.jpg", "ab.txt", "masks/c.png")
    data = _data(train=[f"{tmp_path}/*.tif"], labels="masks/{stem}.png")
    assert _names(data, tmp_path) == wanted


def test_one_file_of_polygons_with_its_parts(tmp_path: Path) -> None:
    wanted = {"a.tif", "b.tif", "all.shp", "all.dbf", "all.shx", "all.prj"}
    _touch(tmp_path, *wanted, "all2.shp")
    data = _data(train=[f"{tmp_path}/a.tif"], val=[f"{tmp_path}/b.tif"], labels="all.shp", attribute="kind")
    assert _names(data, tmp_path) == wanted


def test_bands_in_files_of_their_own(tmp_path: Path) -> None:
    wanted = {"s_B1.tif", "s_B2.tif", "s.png"}
    _touch(tmp_path, *wanted, "s_B3.tif")
    stack = {"one": "{stem}_B1.tif", "two": "{stem}_B2.tif"}
    data = _data(train=[f"{tmp_path}/*_B1.tif"], labels="{stem}.png", stack=stack)
    assert _names(data, tmp_path) == wanted


def test_a_dataset_is_all_below_its_root(tmp_path: Path) -> None:
    _touch(
        tmp_path, "set/a/1.png", "set/b/1.png", "set/b/2.png", "set/about.txt", "set/.cache/x", "other.png"
    )
    keys = {"format": "classes", "root": str(tmp_path / "set")}
    data = check_job({"task": "classify", "data": {**keys, "classes": _CLASSES}}, "job").data
    assert _names(data, tmp_path) == {"set/a/1.png", "set/b/1.png", "set/b/2.png", "set/about.txt"}


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    _touch(tmp_path, "a.tif")
    with pytest.raises(DataError, match="labels of"):
        files_of(_data(train=[f"{tmp_path}/a.tif"]), 0)
