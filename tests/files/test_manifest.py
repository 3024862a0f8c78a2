"""A manifest survives a kill, and tells a file that changed."""

from __future__ import annotations

from pathlib import Path

from outsize.files.manifest import MANIFEST, Finished, Manifest, sha256_of


def test_lines_are_found_again_and_the_last_counts(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / MANIFEST)
    for text in ("one", "two"):
        (tmp_path / "a").write_text(text)
        manifest.note(Finished("a", 3, sha256_of(tmp_path / "a"), {"of": text}))
    again = Manifest(tmp_path / MANIFEST)
    assert [each.facts for each in again.all()] == [{"of": "two"}]
    assert again.holds("a")
    assert not again.holds("b")
    (tmp_path / "a").write_text("owt")
    assert not again.holds("a")


def test_a_line_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / MANIFEST).write_text('{"name": "x", "size_b')
    manifest = Manifest(tmp_path / MANIFEST)
    manifest.note(Finished("a", 3, sha256_of(tmp_path / "a"), {}))
    assert [each.name for each in Manifest(tmp_path / MANIFEST).all()] == ["a"]
