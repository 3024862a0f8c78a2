"""Folders and files that only this user can have written: for what is believed, or run, without another look."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from outsize.files.plain import open_plain, read_opened

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(Exception):
    """Others could have written a file, or could put another one in its place."""


def private_folder(folder: Path) -> Path:
    """Make a folder of mode 0700, or see that it is ours and has it. Raises NotPrivateError, OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode):
            raise NotPrivateError(f"{folder} is no folder") from None
        if about.st_uid != os.geteuid():
            raise NotPrivateError(f"{folder} belongs to another user") from None
        if about.st_mode & 0o077:
            folder.chmod(0o700)
    return folder


def read_own(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a plain file that only we can have written. Raises NotPrivateError, OSError."""
    opened = open_plain(path, os.O_NOFOLLOW)
    try:
        _refuse_foreign(path, os.fstat(opened))
    except NotPrivateError:
        os.close(opened)
        raise
    return read_opened(opened, most_bytes)


def refuse_others(path: Path) -> None:
    """Refuse a file or folder that others could write or replace. Raises NotPrivateError, OSError.

    All folders above it count: who may write in one may put another folder in the place of the next. A sticky one, as
    /tmp, lets nobody remove what is another's. The superuser is no other.
    """
    path = path.absolute()
    _refuse_foreign(path, path.lstat())
    for folder in path.parent.resolve(strict=True).joinpath(path.name).parents:
        about = folder.stat()
        if about.st_uid not in (os.geteuid(), 0):
            raise NotPrivateError(f"{folder} belongs to another user")
        if about.st_mode & _OTHERS_WRITE and not about.st_mode & stat.S_ISVTX:
            raise NotPrivateError(f"{folder} can be written by others")


def _refuse_foreign(path: Path, about: os.stat_result) -> None:
    if stat.S_ISLNK(about.st_mode):
        raise NotPrivateError(f"{path} is a symbolic link")
    if about.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} belongs to another user")
    if about.st_mode & _OTHERS_WRITE:
        raise NotPrivateError(f"{path} can be written by others")
    if stat.S_ISREG(about.st_mode) and about.st_nlink != 1:
        raise NotPrivateError(f"{path} has a second name")
