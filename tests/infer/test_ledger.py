"""Names of maps are unique, stay with their scene, and lead back to it."""

from __future__ import annotations

from pathlib import Path

from outsize.infer.ledger import choose_names, read_ledger, write_ledger


def _predict(folder: Path, scenes: list[Path]) -> list[str]:
    names = choose_names(folder, scenes)
    entries = read_ledger(folder)
    for scene, name in zip(scenes, names, strict=True):
        entries[str(scene.resolve())] = {"scene": str(scene), "map": str(folder / f"{name}.tif")}
    write_ledger(folder, entries, {"run": "x"})
    return names


def test_equal_stems_take_their_folders_along(tmp_path: Path) -> None:
    scenes = [tmp_path / folder / "part_1.jpg" for folder in ("one", "two")]
    assert _predict(tmp_path, scenes) == ["part_1", "two_part_1"]


def test_a_name_stays_with_its_scene_over_calls(tmp_path: Path) -> None:
    one, two = (tmp_path / folder / "part_1.jpg" for folder in ("one", "two"))
    assert _predict(tmp_path, [two]) == ["part_1"]
    assert _predict(tmp_path, [one]) == ["one_part_1"]
    assert _predict(tmp_path, [one, two]) == ["one_part_1", "part_1"]
    assert len(read_ledger(tmp_path)) == 2
    assert read_ledger(tmp_path)[str(two.resolve())]["map"] == str(tmp_path / "part_1.tif")
    assert str(tmp_path / "scene.tif") not in read_ledger(tmp_path)
