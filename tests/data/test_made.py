"""Labels that are made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from outsize.data.made import made_labels, stamp

LABELS = np.arange(12, dtype=np.uint8).reshape(3, 4)


def test_made_once_for_each_key_and_image(tmp_path: Path) -> None:
    calls = []

    def make() -> NDArray[np.uint8]:
        calls.append(None)
        return LABELS

    first = made_labels(tmp_path / "a/x.jpg", tmp_path / "cache", "one", make)
    np.testing.assert_array_equal(np.asarray(Image.open(first.path)), LABELS)
    assert (first.num_bands, first.dtype, first.always_valid) == (1, "uint8", True)
    assert made_labels(tmp_path / "a/x.jpg", tmp_path / "cache", "one", make) == first
    assert len(calls) == 1
    assert made_labels(tmp_path / "a/x.jpg", tmp_path / "cache", "two", make).path == first.path
    assert made_labels(tmp_path / "b/x.jpg", tmp_path / "cache", "two", make).path != first.path
    assert len(calls) == 3
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    before = stamp(path)
    assert stamp(path) == before
    path.write_text("four")
    assert stamp(path) != before
