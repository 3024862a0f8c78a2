"""Writes a file or folder beside its name and renames it when it is whole; it tells whose it is, and is not guessed.

    run/plan.json                                        what is to be written
    run/.plan.json.3f2a91c0-4711-81523-8d0c9be1f2a64d37.part   while it is written
        ^          ^        ^    ^     ^
        the name   machine  pid  when  64 random bits          (when the process started)

Whoever knew the name before could put a symbolic link there, and its target would be written over. What a process
that was killed has left is removed by the next one that writes into the folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outsize.files.processes import here, start_of

_PATTERN = re.compile(
    r"\..+\.(?P<machine>[0-9a-f]{8})-(?P<pid>[0-9]{1,10})-(?P<start>[0-9]{1,20})-[0-9a-f]{16}\.part(\..*)?(-journal|-wal|-shm)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Writer:
    """The process that writes, or wrote, a file beside its name."""

    machine: str
    pid: int
    start: str  # another process may be given its number

    @property
    def is_gone(self) -> bool:
        """Whether it surely writes no more: of another machine nothing is known."""
        return self.machine == machine() and start_of(self.pid) != self.start


def writer_of(path: Path) -> Writer | None:
    """Return who writes the file of this name; None for a name that is none of ours."""
    found = _PATTERN.fullmatch(path.name)
    return Writer(found["machine"], int(found["pid"]), found["start"]) if found else None


@cache
def machine() -> str:
    """Return a few letters that differ between machines, which may share a disk, and between containers of one."""
    return hashlib.sha256(" ".join(here()).encode()).hexdigest()[:8]


def clear_left(folder: Path, *, is_alone: bool = False) -> None:
    """Remove what processes that are over have left half written in a folder; or all of it where we are alone."""
    with suppress(OSError):
        for each in list(folder.iterdir()):
            writer = writer_of(each)
            if writer is not None and (writer.is_gone or is_alone):
                with suppress(OSError):
                    shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()


@cache
def _clear_once(folder: Path) -> None:
    clear_left(folder)


@contextmanager
def written_beside(target: Path, suffix: str = "") -> Iterator[Path]:
    """Give a new, empty file beside `target`, renamed to it when the block ends well, else removed.

    `suffix` is for libraries that want the name of a file to end in a certain way. Raises OSError.
    """
    temporary = _name_beside(target, suffix)
    os.close(create(temporary))
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # some file systems tell of a full disk only now
        temporary.replace(target)
    finally:
        _remove(temporary)


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Give a new folder beside `target`, renamed to it when the block ends well, else removed. Raises OSError.

    What is at `target` may be an empty folder.
    """
    temporary = _name_beside(target)
    temporary.mkdir()
    try:
        yield temporary
        if target.is_dir():
            target.rmdir()
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _name_beside(target: Path, suffix: str = "") -> Path:
    _clear_once(target.parent.resolve())
    token = f"{machine()}-{os.getpid()}-{start_of(os.getpid())}-{secrets.token_hex(8)}"
    # a name has at most 255 bytes, and `target` may have them all
    stem = os.fsdecode(os.fsencode(target.name)[:150])
    return target.with_name(f".{stem}.{token}.part{suffix}")


def create(path: Path) -> int:
    """Create a file that is not there yet, not even as a link, and open it for writing. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _remove(temporary: Path) -> None:
    """Remove the file and what libraries keep beside it: journals, overviews."""
    with suppress(OSError):
        for left in [each for each in temporary.parent.iterdir() if each.name.startswith(temporary.name)]:
            with suppress(OSError):
                left.unlink()
