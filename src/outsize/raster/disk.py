"""Turns trouble with the disk into errors that say what to do, before writing and while writing."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outsize.errors import OutputError, explain
from outsize.files.beside import written_beside
from outsize.files.private import NotPrivateError, private_folder
from outsize.units import format_bytes

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def make_folder(folder: Path) -> bool:
    """Create a folder and its parents; return whether it was not there before."""
    with disk_errors(folder):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:  # perhaps since a moment, by another rank
            if not folder.is_dir():
                raise
            return False
    return True


def make_private_folder(folder: Path) -> bool:
    """Create a folder that nobody else can write in, for work under names that all can guess; return whether it is new.

    Others could have put links there to what is to be written over.
    """
    is_new = not folder.is_dir()
    try:
        with disk_errors(folder):
            private_folder(folder)
    except NotPrivateError as error:
        needed, remedy = "a folder of your own to work in", "remove it, or choose another output folder"
        raise OutputError(explain(f"{folder} cannot be used", error, needed, remedy)) from error
    return is_new


def need_space(folder: Path, num_bytes: int, what: str) -> None:
    """Refuse to begin what would not fit on the disk."""
    with disk_errors(folder):
        free_bytes = shutil.disk_usage(folder).free
    if num_bytes > free_bytes:
        raise OutputError(
            explain(
                f"{folder} has no space for {what}",
                f"{format_bytes(free_bytes)} free",
                f"{format_bytes(num_bytes)}",
                "free space there or choose another output folder",
            )
        )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write `path` into an OutputError."""
    try:
        yield
    except OSError as error:
        raise output_error(path, error) from error


def output_error(path: Path, error: OSError) -> OutputError:
    """Say in one line why a file or folder could not be written."""
    if error.errno in _FULL:
        needed, remedy = "space for the whole result", "free space there or choose another output folder"
    elif error.errno in _REFUSED:
        needed, remedy = "permission to write", "change its permissions or choose another output folder"
    else:
        needed, remedy = "a place to write to", "choose another output folder"
    return OutputError(explain(f"{path} cannot be written", error.strerror or error, needed, remedy))


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give a name beside `target` to write to; rename it to `target` if all goes well, else leave nothing."""
    with disk_errors(target), written_beside(target, target.suffix) as partial:
        yield partial


def incomplete(target: Path, found: object) -> OutputError:
    """Say that a library could not, or did not, write all of a file."""
    needed = "space and permission for the whole file"
    remedy = "free space there or choose another output folder"
    return OutputError(explain(f"{target} cannot be written", found, needed, remedy))
