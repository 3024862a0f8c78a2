"""IDX files: what is in them becomes one scene of pictures, and what is wrong is said in one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.formats.classed.digit_files import draw_idx, section, write_idx

from outsize.data.catalogue import open_data
from outsize.data.checking.check import check_data
from outsize.data.formats.classed import find_idx, read_idx
from outsize.errors import DataError, JobError, UnsafeFileError

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize("ending", [".gz", ""])
def test_pictures_of_a_file_are_one_scene_and_the_last_are_for_validation(
    tmp_path: Path, ending: str
) -> None:
    draw_idx(tmp_path, ending=ending)
    data = section("idx", tmp_path, split={"val": 0.25})
    splits = open_data(data, seed=0, halo_px=0, cache=tmp_path / "cache")
    (train,), (val,), (test,) = splits.train, splits.val, splits.test
    assert train.image.path == val.image.path != test.image.path
    assert train.picture_px == (12, 12)
    assert [(area.row, area.height) for area in (*train.areas, *val.areas)] == [(0, 360), (360, 120)]
    assert test.areas == ()
    pixels = np.asarray(Image.open(train.image.path))
    assert np.array_equal(
        pixels.reshape(40, 12, 12), read_idx(tmp_path / f"train-images-idx3-ubyte{ending}", 3)
    )
    labels = np.asarray(Image.open(train.labels.path)).reshape(40, 144)
    assert np.array_equal(labels, np.repeat(np.arange(40)[:, None] % 10, 144, axis=1))


def test_pictures_are_counted_by_class_and_split(tmp_path: Path) -> None:
    draw_idx(tmp_path)
    data = section("idx", tmp_path, split={"val": 0.25})
    splits = open_data(data, seed=0, halo_px=0, cache=tmp_path / "cache")
    found = check_data(data, splits, num_threads=2)
    assert {split: counts.tolist() for split, counts in found.class_px.items()} == {
        "train": [3] * 10,
        "val": [1] * 10,
        "test": [1] * 10,
    }
    assert found.problems == ()
    assert found.statistics is not None
    own = read_idx(tmp_path / IMAGES, 3)[:30]
    assert found.statistics.mean[0] == pytest.approx(own.mean())
    assert found.statistics.std[0] == pytest.approx(own.std())


def test_without_test_files_some_are_held_back(tmp_path: Path) -> None:
    draw_idx(tmp_path)
    for path in tmp_path.glob("t10k*"):
        path.unlink()
    layout = find_idx(section("idx", tmp_path, split={"val": 0.1, "test": 0.2}), 0)
    rows = {split: [area for each in held.values() for area in each] for split, held in layout.areas.items()}
    assert [(rows[split][0].row, rows[split][0].height) for split in ("train", "val", "test")] == [
        (0, 28 * 12),
        (28 * 12, 4 * 12),
        (32 * 12, 8 * 12),
    ]


def _cut(root: Path) -> None:
    (root / IMAGES).write_bytes((root / IMAGES).read_bytes()[:-400])


def _no_classes(root: Path) -> None:
    (root / LABELS).unlink()


def _fewer_classes(root: Path) -> None:
    write_idx(root / LABELS, np.zeros(39, np.uint8))


def _other_numbers(root: Path) -> None:
    (root / IMAGES).write_bytes(gzip.compress(b"\x00\x00\x0d\x03" + b"\x00" * 50))


def _bomb(root: Path) -> None:
    claimed = np.array([10**6, 10**3, 10**3], ">u4").tobytes()
    (root / IMAGES).write_bytes(gzip.compress(b"\x00\x00\x08\x03" + claimed))


def _long(root: Path) -> None:
    packed = gzip.decompress((root / IMAGES).read_bytes())
    (root / IMAGES).write_bytes(gzip.compress(packed + b"\x00"))


@pytest.mark.parametrize(
    ("spoil", "kind", "text"),
    [
        (_cut, DataError, "end-of-stream marker"),
        (_no_classes, DataError, "are missing: found no train-labels-idx1-ubyte"),
        (_fewer_classes, DataError, "39 classes, needed 40, as"),
        (_other_numbers, DataError, "found it begins with 0 0 13 3, needed an IDX file of bytes with 3 axes"),
        (_bomb, UnsafeFileError, "found 1000000 x 1000 x 1000, needed at most"),
        (_long, DataError, "is not whole: found more, needed 5,760 for 40 x 12 x 12"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, spoil: object, kind: type, text: str) -> None:
    draw_idx(tmp_path)
    assert callable(spoil)
    spoil(tmp_path)
    with pytest.raises(kind, match=text) as raised:
        open_data(section("idx", tmp_path), seed=0, halo_px=0, cache=tmp_path / "cache")
    assert "\n" not in str(raised.value)


def test_a_folder_without_pictures(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"no pictures to learn from in .*: found notes.txt"):
        open_data(section("idx", tmp_path), seed=0, halo_px=0, cache=tmp_path / "cache")


def test_keys_that_mean_nothing_here(tmp_path: Path) -> None:
    draw_idx(tmp_path)
    with pytest.raises(JobError, match=r"data.shrink is not for pictures"):
        open_data(section("idx", tmp_path, shrink=2), seed=0, halo_px=0, cache=tmp_path / "cache")
    with pytest.raises(JobError, match="does not tell classes of pixels"):
        open_data(section("idx", tmp_path, pictures=False), seed=0, halo_px=0, cache=tmp_path / "cache")
    with pytest.raises(JobError, match="does not tell a class for each picture"):
        open_data(section("coco", tmp_path), seed=0, halo_px=0, cache=tmp_path / "cache")
