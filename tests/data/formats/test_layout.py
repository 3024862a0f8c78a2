"""What formats have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.data.formats.layout import pictures_in, refuse_keys
from outsize.errors import JobError, listed
from outsize.job import check_job


def test_pictures_by_their_names(tmp_path: Path) -> None:
    for name in ("b_x.png", "a_x.PNG", "c.jpg", "d.txt", ".e_x.png", "f.JPEG"):
        (tmp_path / name).touch()
    assert list(pictures_in(tmp_path)) == ["a_x", "b_x", "c", "f"]
    assert list(pictures_in(tmp_path, "_x.png")) == ["a", "b"]


def test_many_names_are_cut_short() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdef"), 2) == "a, b and 4 more"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"format": "cityscapes", "images": ["*.png"]}, "data.images is not for cityscapes"),
        ({"format": "camvid", "val": ["x"]}, "data.val is not for camvid"),
        ({"format": "coco", "class_map": "taco-1", "attribute": "kind"}, "data.attribute is not for coco"),
        ({"format": "cityscapes", "class_map": "taco-1"}, "data.class_map is not for cityscapes"),
    ],
)
def test_keys_that_would_be_passed_over_are_refused(keys: dict[str, object], text: str) -> None:
    data = check_job({"data": keys}, "job").data
    with pytest.raises(JobError, match=text):
        refuse_keys(data)


def test_a_file_for_each_split_is_for_coco() -> None:
    refuse_keys(check_job({"data": {"format": "coco", "class_map": "taco-1", "train": "a.json"}}, "job").data)
