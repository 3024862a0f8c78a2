"""What is said when a file cannot be written fits the cause."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from outsize.errors import OutputError
from outsize.runs import output_errors, write_text


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
