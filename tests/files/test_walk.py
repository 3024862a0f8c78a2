"""Patterns find what pathlib's find, and stop where they would look through a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.errors import DataError
from outsize.files import walk
from outsize.files.walk import files_below, matching


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.tif", "b.png", "x/a.tif", "x/y/a.tif", "x/y/.hidden.tif", ".h/a.tif", "x[1]/a.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "x" / "loop").symlink_to(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.tif", "**/*.tif", "*/*.tif", "x/**/*", "?/a.tif", "[a-x]/*.tif", "**/y/*", "x/a.tif", "none/*"],
)
def test_it_finds_what_pathlib_finds(tree: Path, pattern: str) -> None:
    assert matching(tree, Path(pattern).parts, pattern) == sorted(tree.glob(pattern))


def test_two_stars_inside_a_name_are_one(tree: Path) -> None:
    assert matching(tree, ["a**"], "a**") == [tree / "a.tif"]


def test_files_below_are_plain_ones(tree: Path) -> None:
    assert files_below(tree) == sorted(path for path in tree.rglob("*") if path.is_file())


@pytest.mark.parametrize("pattern", ["*", "**/*.none", "*/*"])
def test_it_stops_at_a_number_of_names(tree: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_NAMES", 4)
    with pytest.raises(DataError, match=r"looks through too much: found more than 4 files and folders"):
        matching(tree, Path(pattern).parts, pattern)
