"""What is said when a file cannot be written fits the cause."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outsize.errors import OutputError, RunError
from outsize.files.ownership import Consent
from outsize.runs import (
    RunFolder,
    as_written,
    is_own,
    output_errors,
    refuse_foreign,
    working_in,
    write_text,
)


@dataclass(frozen=True)
class Fields:
    """What a file may hold the fields of."""

    text: str


def takes_one(one: object) -> object:
    return one


@pytest.mark.parametrize(
    ("number", "found", "remedy"),
    [
        (errno.EACCES, "Permission denied, needed permission", "may write in"),
        (errno.EROFS, "Read-only file system, needed permission", "may write in"),
        (errno.ENOSPC, "No space left on device", "free space"),
    ],
)
def test_the_remedy_fits_the_cause(tmp_path: Path, number: int, found: str, remedy: str) -> None:
    target = tmp_path / "run" / "job.toml"
    with pytest.raises(OutputError, match=f"found {found}") as caught, output_errors(target):
        raise OSError(number, os.strerror(number))
    assert remedy in str(caught.value)
    assert ("free space" in str(caught.value)) == (number == errno.ENOSPC)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    for target in (tmp_path / "run" / "job.toml", tmp_path / "run" / "deep" / "job.toml"):
        with pytest.raises(OutputError, match=f"found a file at {tmp_path / 'run'}, .* remove or rename it"):
            write_text(target, "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=r"found a folder at .* remove or rename it"):
        write_text(tmp_path / "folder", "")
    assert (tmp_path / "run").read_text() == "mine"


def _left(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_run_folder_is_marked_and_held_while_a_verb_fills_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "deep" / "run")
    with working_in(run, "train"):
        assert _left(run.path) == {".outsize", ".outsize.lock"}
        write_text(run.job, "")
    assert _left(run.path) == {".outsize", "job.toml"}
    with working_in(run, "train"):
        pass
    assert is_own(run)


def _write_and_fail(run: RunFolder) -> None:
    write_text(run.labels / "a.tif", "")
    write_text(run.labels, "")  # a folder by now


def test_a_run_that_fails_before_its_first_file_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("deep/run", "empty"):
        with pytest.raises(KeyError), working_in(RunFolder(tmp_path / name), "train"):
            raise KeyError
    assert _left(tmp_path) == {"empty"}
    run = RunFolder(tmp_path / "run")
    with pytest.raises(OutputError), working_in(run, "train"):
        _write_and_fail(run)
    assert _left(run.path) == {".outsize", "labels", "a.tif"}


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["facts.json", "plan.json"], True),
        (["split.json", "data.json"], True),
        (["job.toml", "metrics.jsonl", "notes.txt"], True),
        (["labels/a-0123abcd.tif", "labels/b-0123abcd.npz"], True),
        (["labels/a.png"], False),
        (["job.toml"], False),
        (["notes.txt"], False),
        ([], False),
    ],
)
def test_runs_of_earlier_versions_are_known_by_their_files(
    tmp_path: Path, names: list[str], own: bool
) -> None:
    run = RunFolder(tmp_path / "run")
    for name in names:
        write_text(run.path / name, "")
    assert is_own(run) == own
    if own or not names:
        with working_in(run, "train"):
            pass
        assert (run.path / ".outsize").exists()
        return
    match = rf"is not outsize's own: found {names[0].partition('/')[0]}, .*train with --overwrite"
    with pytest.raises(OutputError, match=match):
        refuse_foreign(run)
    with pytest.raises(OutputError, match=match), working_in(run, "train"):
        pytest.fail("let in")
    assert not (run.path / ".outsize").exists()
    with working_in(run, "train", Consent(overwrite=True)):
        pass
    refuse_foreign(run)


@pytest.mark.parametrize("consent", [Consent(), Consent(overwrite=True)])
def test_no_run_goes_into_a_root_or_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consent: Consent
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in (Path("/"), tmp_path, tmp_path.parent):
        match = "the run folder cannot be .*--set run="
        with pytest.raises(OutputError, match=match), working_in(RunFolder(place), "train", consent):
            pytest.fail("let in")
    assert _left(tmp_path) == set()


@pytest.mark.parametrize(
    "take",
    [
        lambda tree: tree["none"],
        lambda tree: tree["text"].items(),
        lambda tree: tree["text"] + 1,
        lambda tree: float(tree["text"]),
        lambda tree: 1 / tree["zero"],
        lambda tree: Fields(**tree),
    ],
)
def test_what_a_file_lacks_is_told_of_the_file(take: Callable[[Any], object]) -> None:
    with pytest.raises(RunError, match=r"a\.json cannot be understood"), as_written(Path("a.json"), "train"):
        take({"text": "a", "zero": 0})


@pytest.mark.parametrize(
    ("take", "kind"),
    [
        (lambda tree: Path().no_such_name, AttributeError),
        (lambda tree: Path.read_text(), TypeError),
        (lambda tree: takes_one(tree, 2), TypeError),
        (lambda tree: takes_one(nobody=tree), TypeError),
        (lambda tree: no_such_name, NameError),  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_a_bug_is_no_broken_file(take: Callable[[Any], object], kind: type[Exception]) -> None:
    with pytest.raises(kind), as_written(Path("a.json"), "train"):
        take({"text": "a"})
