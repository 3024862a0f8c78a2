"""What is believed without another look lies where only this user can write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outsize.files import private
from outsize.files.private import NotPrivateError, private_folder, read_own, refuse_others


def test_a_folder_is_made_private_or_becomes_so(tmp_path: Path) -> None:
    for name in ("new", "old"):
        folder = tmp_path / "deep" / name
        if name == "old":
            folder.mkdir(mode=0o755)
        assert private_folder(folder) == folder
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_or_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(NotPrivateError, match="is no folder"):
            private_folder(tmp_path / name)
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(private.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotPrivateError, match="belongs to another user"):
        private_folder(tmp_path / "theirs")


def test_a_folder_in_one_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    ours = private_folder(tmp_path / "open" / "ours")
    with pytest.raises(NotPrivateError, match="open can be written by others"):
        refuse_others(ours)
    (tmp_path / "open").chmod(0o1777)  # as /tmp: nobody removes what is another's
    refuse_others(ours)


def test_a_file_is_read_only_if_nobody_else_can_have_written_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    assert read_own(path, 9) == b"1"
    for mode in (0o602, 0o620):
        path.chmod(mode)
        with pytest.raises(NotPrivateError, match="can be written by others"):
            read_own(path, 9)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_own(tmp_path / "link", 9)
    (tmp_path / "second").hardlink_to(path)
    with pytest.raises(NotPrivateError, match="second name"):
        read_own(path, 9)
    (tmp_path / "second").unlink()
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(OSError, match="a pipe"):
        read_own(tmp_path / "pipe", 9)
    monkeypatch.setattr(private.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotPrivateError, match="belongs to another user"):
        refuse_others(path)
