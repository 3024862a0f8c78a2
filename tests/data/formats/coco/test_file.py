"""What a COCO file says, and what is wrong with one."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.miniatures import draw_taco

from outsize.data.formats.coco.file import Rle, read_coco
from outsize.data.formats.datasets import recognise
from outsize.errors import DataError

RING = [1.0, 1.0, 5.0, 1.0, 5.0, 5.0]


def write(tmp_path: Path, **changed: Any) -> Path:
    annotation = {"id": 1, "image_id": 1, "category_id": 3, "segmentation": [RING], "bbox": [1, 1, 4, 4]}
    tree = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 8, "width": 9}],
        "categories": [{"id": 3, "name": "fig"}],
        "annotations": [{**annotation, **changed.pop("annotation", {})}],
        **changed,
    }
    path = tmp_path / "file.json"
    path.write_text(json.dumps(tree))
    return path


def test_ids_that_are_there_twice_lose_nothing(tmp_path: Path) -> None:
    tree = draw_taco(tmp_path)
    found = read_coco(tmp_path / "annotations.json")
    assert sum(len(picture.annotations) for picture in found.pictures) == len(tree["annotations"]) == 32
    assert (len(found.pictures), len(found.categories), found.has_addresses) == (8, 60, True)


def test_the_same_annotation_twice_is_one(tmp_path: Path) -> None:
    row = {"id": 1, "image_id": 1, "category_id": 3, "segmentation": [RING]}
    other = {**row, "segmentation": [[each + 1 for each in RING]]}
    found = read_coco(write(tmp_path, annotations=[row, row, other]))
    assert len(found.pictures[0].annotations) == 2


def test_a_picture_listed_twice_is_one(tmp_path: Path) -> None:
    images = [{"id": number, "file_name": "a.jpg", "height": 8, "width": 9} for number in (1, 2)]
    rows = [{"id": n, "image_id": n, "category_id": 3, "segmentation": [RING]} for n in (1, 2)]
    found = read_coco(write(tmp_path, images=images, annotations=rows))
    assert [len(each.annotations) for each in found.pictures] == [2]


def test_runs_boxes_and_slivers(tmp_path: Path) -> None:
    runs = {"size": [8, 9], "counts": [0, 72]}
    found = (
        read_coco(write(tmp_path, annotation={"segmentation": runs, "iscrowd": 1})).pictures[0].annotations[0]
    )
    assert (found.rle, found.is_crowd, found.rings) == (Rle((8, 9), (0, 72)), True, ())
    found = read_coco(write(tmp_path, annotation={"segmentation": [[1, 1, 2, 2]]})).pictures[0].annotations[0]
    assert (found.rings, found.rle, found.box) == ((), None, (1, 1, 4, 4))


def test_gzipped(tmp_path: Path) -> None:
    packed = tmp_path / "file.json.gz"
    packed.write_bytes(gzip.compress(write(tmp_path).read_bytes()))
    assert read_coco(packed).pictures[0].file_name == "a.jpg"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"images": None}, "it is no COCO file: found keys images, categories, annotations"),
        ({"images": ["a.jpg"]}, "images that are no list of tables"),
        ({"images": [{"id": 1, "height": 8, "width": 9}]}, "found no file_name"),
        ({"images": [{"id": 1, "file_name": "a.jpg", "height": 0, "width": 9}]}, "found 0 x 9"),
        ({"annotation": {"image_id": 7}}, "annotation 1 is of no picture: found image_id 7"),
        ({"annotation": {"category_id": 7}}, "annotation 1 is of no category: found category_id 7"),
        ({"annotation": {"segmentation": [[1, 2, 3]]}}, "the outline of annotation 1 is no polygon"),
        ({"annotation": {"segmentation": "x"}}, "the outline of annotation 1 is none"),
        ({"annotation": {"segmentation": {"size": [8, 9]}}}, "the runs of annotation 1 cannot be read"),
        ({"annotation": {"bbox": [1, 2]}}, "the box of annotation 1 is none"),
        ({"categories": [{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]}, "category id 3 is there twice"),
    ],
)
def test_what_is_wrong_is_told_with_the_file(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    path = write(tmp_path, **changed)
    with pytest.raises(DataError) as caught:
        read_coco(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_pictures_of_one_id(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": name, "height": 8, "width": 9} for name in ("a.jpg", "b.jpg")]
    with pytest.raises(DataError, match=r"image id 1 is there twice: found a.jpg and b.jpg"):
        read_coco(write(tmp_path, images=images))


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_no_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"file.json: it is no"):
        read_coco(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing.json cannot be read: found No such file"):
        read_coco(tmp_path / "nothing.json")
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(DataError, match=r"broken.json.gz cannot be read"):
        read_coco(broken)


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"images": [' + b" " * 2**28 + b"]}", 9))
    assert path.stat().st_size < 2**19
    read = []
    monkeypatch.setattr("outsize.data.formats.coco.file.json_tree", read.append)
    with pytest.raises(DataError, match=r"found a bomb: more than 1.* MiB in "):
        read_coco(path)
    assert read == []


def test_text_of_many_small_parts_is_measured_by_the_memory_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    path.write_text('{"images": [' + "[]," * 1000 + "[]]}")
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Free", (), {"available": 2**16}))
    with pytest.raises(DataError, match=r"parts that take .* KiB, and 64.0 KiB of memory free"):
        read_coco(path)


def test_pipes_devices_and_giants_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zeros.json").symlink_to("/dev/zero")
    (tmp_path / "giant.json").touch()
    os.truncate(tmp_path / "giant.json", 2**40)
    for name, found in (("pipe", "a pipe"), ("zeros", "a device"), ("giant", "1.0 TiB, more than 2.0 GiB")):
        with pytest.raises(DataError, match=found):
            read_coco(tmp_path / f"{name}.json")
    assert recognise(tmp_path) is None


@pytest.mark.parametrize("value", [[], {}, 1.5, True, None, "x" * 10_000, "\0", "a\nb", -1, 10**30])
@pytest.mark.parametrize("key", ["id", "image_id", "category_id"])
def test_keys_of_any_type_are_read_or_told_in_one_line(tmp_path: Path, key: str, value: object) -> None:
    try:
        read_coco(write(tmp_path, annotation={key: value}))
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017 - some values are right
        assert len(str(error)) < 3000  # noqa: PT017


def test_json_that_is_nested_too_deeply_is_told(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text('{"images": ' + "[" * 100_000)
    with pytest.raises(DataError, match="nested too deeply"):
        read_coco(path)
