"""Digests are of what files hold, and not of when they were written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outsize.files.manifest import MANIFEST, Finished, Manifest, sha256_of
from outsize.workflow import contents
from outsize.workflow.contents import Contents


def test_the_same_bytes_have_one_digest_and_others_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_text("b")
    places = [tmp_path / "a", tmp_path / "folder"]
    before = Contents({}).digest(places)
    os.utime(tmp_path / "a", (1, 1))
    (tmp_path / "folder" / ".hidden").touch()
    assert Contents({}).digest(places) == before is not None
    (tmp_path / "folder" / "b").write_text("c")
    assert Contents({}).digest(places) != before
    assert Contents({}).digest([*places, tmp_path / "nowhere"]) is None


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("a")
    known = Contents({})
    before = known.digest([tmp_path])

    def never(_: Path) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(contents, "sha256_of", never)
    assert Contents(known.known).digest([tmp_path]) == before


def test_a_manifest_speaks_for_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    manifest = Manifest(tmp_path / MANIFEST)
    manifest.note(Finished("a", 1, sha256_of(tmp_path / "a")))
    before = Contents({}).digest([tmp_path])
    (tmp_path / "beside").touch()
    assert Contents({}).digest([tmp_path]) == before
    (tmp_path / "a").unlink()
    assert Contents({}).digest([tmp_path]) != before
