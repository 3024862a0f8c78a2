"""The journal: Optuna's own lines; a full disk leaves none half written, and nothing that was there is lost."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from outsize.errors import OutputError
from outsize.tuning import journal as module
from outsize.tuning.journal import Journal


def test_lines_are_read_from_where_one_was_and_by_optunas_own_backend(tmp_path: Path) -> None:
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "study.log"
    path.touch()
    mine, theirs = Journal(path), Journal(path)
    mine.append_logs([{"op": 1}, {"op": 2}])
    assert list(theirs.read_logs(0)) == [{"op": 1}, {"op": 2}]
    mine.append_logs([{"op": 3}])
    assert list(theirs.read_logs(2)) == [{"op": 3}]
    assert list(Journal(path).read_logs(1)) == [{"op": 2}, {"op": 3}]
    assert list(JournalFileBackend(str(path)).read_logs(0)) == [{"op": 1}, {"op": 2}, {"op": 3}]
    with path.open("a") as file:
        file.write('{"op":')  # another process is writing
    assert list(theirs.read_logs(3)) == []


def test_a_full_disk_is_one_line_and_the_study_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.log"
    path.touch()
    journal = Journal(path)
    journal.append_logs([{"op": 1}])
    before = path.read_bytes()
    real = module.append_whole

    def full(target: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "append_whole", full)
    with pytest.raises(OutputError, match=r"cannot write .*study.log: found No space left on device"):
        journal.append_logs([{"op": 2}])
    assert path.read_bytes() == before
    monkeypatch.setattr(module, "append_whole", real)
    journal.append_logs([{"op": 2}])
    assert list(Journal(path).read_logs(0)) == [{"op": 1}, {"op": 2}]


def test_a_disk_that_takes_a_part_of_a_line_keeps_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    path.touch()
    journal = Journal(path)
    journal.append_logs([{"op": 1}])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 400, hard))  # enough for the lock
    try:
        with pytest.raises(OutputError, match="File too large"):
            journal.append_logs([{"op": "x" * 5000}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
