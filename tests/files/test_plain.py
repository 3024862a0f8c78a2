"""Only plain files of a bounded size are read; nothing hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outsize.files.plain import read_plain, read_plain_text


def test_a_plain_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_plain(path, 5) == b"12345"
    assert read_plain_text(path, 5) == "12345"
    with pytest.raises(OSError, match="5 B, more than 4 B"):
        read_plain(path, 4)


def test_a_hole_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="TiB, more than"):
        read_plain(path, 2**20)


def test_what_tells_no_size_is_bounded_too() -> None:
    assert read_plain(Path("/proc/self/status"), 2**20)
    with pytest.raises(OSError, match="more than 9 B"):
        read_plain(Path("/proc/self/status"), 9)


def test_pipes_devices_and_folders_are_refused_and_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path, found in (
        (tmp_path / "pipe", "a pipe and no plain file"),
        (Path("/dev/zero"), "a device and no plain file"),
        (tmp_path / "link", "a device and no plain file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(OSError, match=found):
            read_plain(path, 2**20)
