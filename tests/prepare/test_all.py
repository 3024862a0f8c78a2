"""What is there, is whole and is of these bytes; what is not, is said; repeated, only what is missing is made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.pieces import Here, copying

from outsize import __version__
from outsize.errors import DataError, OutputError
from outsize.files.manifest import MANIFEST, Manifest
from outsize.job import PrepareSection
from outsize.prepare import batches
from outsize.prepare.all import PARTIAL, SET_ASIDE, FolderFilled, make_missing
from outsize.prepare.folder import prepare_folder
from outsize.progress import Reporter


def _make(tmp_path: Path, names: str = "abc", settings: str = "1") -> tuple[FolderFilled, list[str]]:
    """Make pieces; return also which of them were made."""
    by = Here()
    (tmp_path / "to").mkdir(exist_ok=True)
    pieces = copying(tmp_path / "from", names, settings)
    quiet = Reporter("quiet")
    done = make_missing(pieces, tmp_path / "to", by, version=__version__, reporter=quiet)  # type: ignore[arg-type]
    assert not (tmp_path / "to" / PARTIAL).exists()
    return done, sorted(name for call in by.calls for name in call)


def _there(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (tmp_path / "to").glob("*.out")}


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    assert _make(tmp_path)[1] == list("abc")
    before = (tmp_path / "to" / MANIFEST).read_bytes()
    done, made = _make(tmp_path)
    assert (done.num_there, made) == (3, [])
    assert (tmp_path / "to" / MANIFEST).read_bytes() == before
    assert _there(tmp_path) == {"a.out": "A", "b.out": "B", "c.out": "C"}
    noted = Manifest(tmp_path / "to" / MANIFEST).get("a.out")
    assert noted is not None
    assert noted.facts["letters"] == 1


def _change_source(tmp_path: Path) -> None:
    (tmp_path / "from" / "b").write_text("x")


def _change_product(tmp_path: Path) -> None:
    (tmp_path / "to" / "b.out").write_text("?")


def _lose_product(tmp_path: Path) -> None:
    (tmp_path / "to" / "b.out").unlink()


def _spoil_line(tmp_path: Path) -> None:
    path = tmp_path / "to" / MANIFEST
    path.write_text(path.read_text().replace('"b.out"', '"b.o'))
    (tmp_path / "to" / "b.out").unlink()


@pytest.mark.parametrize("change", [_change_source, _change_product, _lose_product, _spoil_line])
def test_what_has_changed_is_made_again(tmp_path: Path, change: Any) -> None:
    _make(tmp_path)
    change(tmp_path)
    assert _make(tmp_path)[1] == ["b"]
    assert _there(tmp_path)["b.out"] == (tmp_path / "from" / "b").read_text().upper()


def test_a_source_of_another_time_and_the_same_bytes_is_the_same(tmp_path: Path) -> None:
    _make(tmp_path)
    os.utime(tmp_path / "from" / "b", (1, 1))
    assert _make(tmp_path)[1] == []


def test_other_settings_make_all_anew(tmp_path: Path) -> None:
    _make(tmp_path)
    assert _make(tmp_path, settings="2")[1] == list("abc")


def test_what_is_no_longer_asked_for_is_removed_and_nothing_else(tmp_path: Path) -> None:
    _make(tmp_path)
    (tmp_path / "to" / "mine.txt").write_text("mine")
    assert _make(tmp_path, "ab")[0].num_removed == 1
    assert sorted(_there(tmp_path)) == ["a.out", "b.out"]
    assert (tmp_path / "to" / "mine.txt").exists()


def test_what_cannot_be_made_is_set_aside_with_the_reason(tmp_path: Path) -> None:
    _make(tmp_path)
    (tmp_path / "from" / "b").write_text("bad")
    done, _ = _make(tmp_path)
    assert dict(done.set_aside) == {"b": "b is bad: found bad, needed good; mend it"}
    assert json.loads((tmp_path / "to" / SET_ASIDE).read_text()) == dict(done.set_aside)
    assert sorted(_there(tmp_path)) == ["a.out", "c.out"]  # and nothing of what b was before
    (tmp_path / "from" / "b").write_text("b")
    assert _make(tmp_path)[1] == ["b"]
    assert not (tmp_path / "to" / SET_ASIDE).exists()


def test_a_file_of_other_make_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "b.out").write_text("mine")
    done, _ = _make(tmp_path)
    assert "a file of other make" in done.set_aside["b"]
    assert _there(tmp_path) == {"a.out": "A", "b.out": "mine", "c.out": "C"}


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"two files would become a\.out"):
        _make(tmp_path, "aba")


def test_killed_at_any_moment_it_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill leaves what was published, perhaps a line without its file, and what workers have left."""
    made = batches.make_all

    def killed_after_two(*args: Any) -> Any:
        for number, each in enumerate(made(*args)):
            if number == 2:
                raise KeyboardInterrupt
            yield each

    monkeypatch.setattr("outsize.prepare.all.make_all", killed_after_two)
    with pytest.raises(KeyboardInterrupt):
        _make(tmp_path, "abcd")
    monkeypatch.undo()
    left = tmp_path / "to" / PARTIAL / "old"
    left.mkdir(parents=True)
    (left / "c.out").write_text("half")
    (tmp_path / "to" / "a.out").unlink()  # its line was written before it got its name
    assert _make(tmp_path, "abcd")[1] == list("acd")
    assert len(_there(tmp_path)) == 4


def test_a_full_disk_is_one_line_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make(tmp_path, "a")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("outsize.files.manifest.Manifest.note", full)
    with pytest.raises(OutputError, match="No space left"):
        _make(tmp_path, "ab")
    monkeypatch.undo()
    assert _there(tmp_path) == {"a.out": "A"}
    assert _make(tmp_path, "ab")[1] == ["b"]


def test_processes_make_what_one_makes(tmp_path: Path) -> None:
    pieces = copying(tmp_path / "from", "abcdef")
    for num in (1, 2):
        section = PrepareSection(workers=num)
        prepare_folder(pieces, tmp_path / str(num), section, version=__version__, reporter=Reporter("quiet"))
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in "12")
    assert one == two
    assert len(one) == 7


def test_more_than_may_be_set_aside_is_an_error_after_all_else_is_done(tmp_path: Path) -> None:
    pieces = copying(tmp_path / "from", "ab")
    (tmp_path / "from" / "a").write_text("bad")
    quiet = Reporter("quiet")
    with pytest.raises(
        DataError, match=r"not all files could be prepared: found 1 set aside, first a \(a is bad"
    ):
        prepare_folder(
            pieces, tmp_path / "to", PrepareSection(workers=1), version=__version__, reporter=quiet
        )
    assert _there(tmp_path) == {"b.out": "B"}
    section = PrepareSection(workers=1, max_bad_share=0.5)
    assert (
        prepare_folder(pieces, tmp_path / "to", section, version=__version__, reporter=quiet).num_there == 1
    )
