"""The raw scenes of a job: found by patterns, each with its labels and its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.data.raw import raw_pieces
from outsize.errors import JobError
from outsize.job import ClassSpec, DataSection, PrepareSection
from outsize.prepare.piece import Piece

_CLASSES = (ClassSpec(name="a", value=0), ClassSpec(name="b", value=1))


def _pieces(folder: Path, *files: str, **keys: object) -> list[Piece]:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    section = PrepareSection.model_validate({"images": ["raw/*.tif"], **keys})
    return raw_pieces(section, DataSection(classes=_CLASSES, all_polygons="b"), folder, "1")


def _names(pieces: list[Piece]) -> list[tuple[str, list[str], tuple[str, ...]]]:
    return [(each.name, [path.name for path in each.sources], each.outputs) for each in pieces]


def test_each_has_its_labels_and_folders_below_the_pattern_stay(tmp_path: Path) -> None:
    files = ("raw/x/a.tif", "raw/x/a_labels.tif", "raw/y/a.tif", "raw/y/a_labels.tif")
    assert _names(_pieces(tmp_path, *files, images=["raw/*/*.tif"])) == [
        (f"{each}/a", ["a.tif", "a_labels.tif"], (f"{each}/a_labels.tif", f"{each}/a.tif")) for each in "xy"
    ]


def test_scenes_may_have_no_labels_or_polygons(tmp_path: Path) -> None:
    assert _names(_pieces(tmp_path, "raw/a.tif", labels="")) == [("a", ["a.tif"], ("a.tif",))]
    (piece,) = _pieces(tmp_path, "raw/a.tif", labels="all.gpkg")
    assert [path.name for path in piece.sources] == ["a.tif", "all.gpkg"]


def test_a_scene_of_one_file_for_each_band_has_the_name_without_the_band(tmp_path: Path) -> None:
    stack = {"red": "{stem}_B04.tif", "nir": "{stem}_B08.tif"}
    pieces = _pieces(
        tmp_path, "raw/a_B04.tif", "raw/a_B08.tif", images=["raw/*_B04.tif"], labels="", stack=stack
    )
    assert _names(pieces) == [("a", ["a_B04.tif", "a_B08.tif"], ("a.tif",))]


def test_what_decides_the_pixels_decides_the_settings_and_a_moved_folder_does_not(tmp_path: Path) -> None:
    def settings(folder: str, **keys: object) -> str:
        (piece,) = _pieces(tmp_path / folder, "raw/a.tif", **keys)
        return piece.settings

    assert settings("one") == settings("two")
    assert len({settings("one"), settings("one", crs="EPSG:32633"), settings("one", labels="all.gpkg")}) == 3


def test_nothing_to_prepare(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="it is not clear what to prepare"):
        _pieces(tmp_path, images=[])
