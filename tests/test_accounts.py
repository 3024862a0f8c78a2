"""Accounts: a line for each time that a verb ran, also where it failed or was stopped."""

from __future__ import annotations

import errno
import json
import signal
from pathlib import Path

import pytest

from outsize import accounts
from outsize.accounts import accounted, read_accounts
from outsize.errors import DataError, RunError
from outsize.files.ownership import mark
from outsize.progress import Reporter
from outsize.runs import RunFolder, is_own
from outsize.stopping import Stopped


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    mark(tmp_path)
    (tmp_path / "job.toml").touch()
    return RunFolder(tmp_path)


def test_each_verb_adds_a_line_of_one_form(run: RunFolder) -> None:
    reporter = Reporter()
    with accounted(run, "train", reporter, goes_on=True), reporter.doing("plan", parallel=3):
        pass
    with accounted(run, "report", reporter):
        pass
    first, second = read_accounts(run)
    assert (first.verb, first.outcome, first.goes_on) == ("train", "done", True)
    assert [(each.name, each.parallel) for each in first.activities] == [("plan", 3)]
    assert (second.verb, second.activities, second.goes_on) == ("report", (), False)
    assert second.began_s >= first.began_s
    assert 0 <= first.rest_s <= first.seconds
    assert second.rest_s == second.seconds


def test_a_verb_that_fails_is_accounted_for_once_it_had_begun(run: RunFolder) -> None:
    reporter = Reporter()
    with pytest.raises(DataError), accounted(run, "check", reporter):
        raise DataError("refused at once")
    assert read_accounts(run) == []
    with pytest.raises(DataError), accounted(run, "check", reporter), reporter.doing("check"):
        raise DataError("after an hour")
    with pytest.raises(Stopped), accounted(run, "train", reporter), reporter.doing("train"):
        raise Stopped(signal.SIGTERM)
    assert [(each.verb, each.outcome) for each in read_accounts(run)] == [
        ("check", "failed"),
        ("train", "stopped"),
    ]


def test_a_new_run_that_comes_to_nothing_has_no_account(tmp_path: Path) -> None:
    mark(tmp_path)
    run, reporter = RunFolder(tmp_path), Reporter()
    with pytest.raises(DataError), accounted(run, "train", reporter), reporter.doing("plan"):
        raise DataError("no data")
    assert not run.accounts.exists()


def test_nothing_is_left_in_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "new"):
        with accounted(RunFolder(folder), "plan", Reporter()):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_comes_before_a_run_begins_it_unless_it_fails(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "new")
    with pytest.raises(DataError), accounted(run, "prepare", Reporter(), begins=True):
        raise DataError("no files")
    assert not run.path.exists()
    with accounted(run, "prepare", Reporter(), begins=True):
        pass
    assert [each.verb for each in read_accounts(run)] == ["prepare"]
    assert is_own(run)


def test_a_full_disk_is_a_warning_and_the_file_stays_whole(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with accounted(run, "check", Reporter()):
        pass
    before = run.accounts.read_bytes()

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(accounts, "append_whole", full)
    with accounted(run, "train", Reporter("json")):
        pass
    assert "warning: what train took is not kept: cannot write" in capsys.readouterr().out
    with pytest.raises(DataError), accounted(run, "check", Reporter()) as _, Reporter().doing("check"):
        raise DataError("the error itself")
    assert run.accounts.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 2}, "newer schema"),
        ({"activities": [{}]}, "cannot be understood"),
        ({"x": 1}, "cannot be"),
    ],
)
def test_a_newer_or_broken_file_is_one_line(run: RunFolder, change: dict[str, object], says: str) -> None:
    with accounted(run, "check", Reporter()):
        pass
    line = json.loads(run.accounts.read_text())
    run.accounts.write_text(json.dumps({**line, **change}) + "\n")
    with pytest.raises(RunError, match=says):
        read_accounts(run)
