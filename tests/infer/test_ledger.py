"""Names of maps are unique, stay with their scene, and lead back to it."""

from __future__ import annotations

from pathlib import Path

from outsize.infer.ledger import add_to_ledger, choose_names, read_ledger


def _predict(folder: Path, scenes: list[Path]) -> list[str]:
    names = choose_names(folder, scenes)
    for scene, name in zip(scenes, names, strict=True):
        add_to_ledger(folder, {"scene": str(scene), "map": str(folder / f"{name}.tif")}, {"run": "x"})
    return names


def test_equal_stems_take_their_folders_along(tmp_path: Path) -> None:
    scenes = [tmp_path / folder / "part_1.jpg" for folder in ("one", "two")]
    assert _predict(tmp_path, scenes) == ["one_part_1", "two_part_1"]


def test_all_of_several_alike_are_told_apart_and_others_go_by_their_stem(tmp_path: Path) -> None:
    alike = [tmp_path / tile / "images" / "part_1.jpg" for tile in ("tile1", "tile2")]
    scenes = [*alike, tmp_path / "other.tif", tmp_path / "scene.tif", tmp_path / "scene.png", alike[0]]
    names = choose_names(tmp_path, scenes)
    assert names[:3] == ["tile1_images_part_1", "tile2_images_part_1", "other"]
    assert names[5] == names[0]
    assert names[3].endswith("scene_tif")
    assert names[4].endswith("scene_png")


def test_a_name_stays_with_its_scene_over_calls(tmp_path: Path) -> None:
    one, two = (tmp_path / folder / "part_1.jpg" for folder in ("one", "two"))
    assert _predict(tmp_path, [two]) == ["part_1"]
    assert _predict(tmp_path, [one]) == ["one_part_1"]
    assert _predict(tmp_path, [one, two]) == ["one_part_1", "part_1"]
    assert len(read_ledger(tmp_path)) == 2
    assert read_ledger(tmp_path)[str(two.resolve())]["map"] == str(tmp_path / "part_1.tif")
    assert str(tmp_path / "scene.tif") not in read_ledger(tmp_path)
