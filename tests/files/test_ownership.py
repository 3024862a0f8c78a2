"""outsize knows its own folders and files, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outsize.errors import OutputError
from outsize.files.ownership import MADE_BY, is_marked, is_ours, mark, others_in, refuse_others, refuse_place


def test_a_folder_is_marked_once(tmp_path: Path) -> None:
    assert not is_marked(tmp_path)
    assert mark(tmp_path)
    assert is_marked(tmp_path)
    assert not mark(tmp_path)
    assert others_in(tmp_path) == []
    (tmp_path / "notes.txt").touch()
    assert others_in(tmp_path) == ["notes.txt"]
    assert others_in(tmp_path / "none") == others_in(tmp_path / "notes.txt") == []


def test_a_file_is_ours_by_the_name_in_its_head(tmp_path: Path) -> None:
    for name, data in (("ours", f"<!-- {MADE_BY} -->"), ("theirs", "made by hand"), ("empty", "")):
        (tmp_path / name).write_text(data)
    (tmp_path / "late").write_bytes(bytes(1 << 20) + MADE_BY.encode())
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert [
        name for name in sorted(each.name for each in tmp_path.iterdir()) if is_ours(tmp_path / name)
    ] == ["ours"]
    refuse_others([tmp_path / "ours", tmp_path / "none"], "move it")
    for name in ("theirs", "empty", "late", "pipe", "folder"):
        with pytest.raises(
            OutputError, match=f"{name} would be written over: found a file of other make, .*; move it"
        ):
            refuse_others([tmp_path / "ours", tmp_path / name], "move it")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match=r"files of other make: .*theirs, .*dangling"):
        refuse_others([tmp_path / "theirs", tmp_path / "dangling"], "move them")


def test_roots_and_homes_are_no_folders_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "homes" / "me"))
    (tmp_path / "homes" / "me").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/")
    places = ["/", "/..", str(tmp_path / "link"), str(tmp_path / "homes"), str(tmp_path / "homes" / "me")]
    for place in places:
        with pytest.raises(OutputError, match=r"the run cannot be .*, needed a folder of its own; choose"):
            refuse_place(Path(place), "the run", "choose another")
    refuse_place(tmp_path / "homes" / "me" / "runs", "the run", "choose another")
