"""Reads plain files whole, up to a size: a pipe would wait forever, a device never ends, a giant takes all memory."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from outsize.errors import UnsafeFileError, explain
from outsize.units import format_bytes

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/|/vsi|\\\\|//")  # http:/, s3:/, /vsicurl/, \\server\share


def is_address(name: str) -> bool:
    """Say whether a name is an address (a web address, a GDAL virtual path) and not a file's path."""
    return _ADDRESS.match(name) is not None


def is_plain(path: Path) -> bool:
    """Say whether a file is there; refuse what is no plain file, on which to open would wait or never end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        remedy = "copy what comes out of it into a file"
        raise UnsafeFileError(explain(f"{path} is refused", "a pipe or a device", "a plain file", remedy))
    return stat.S_ISREG(mode)


def first_bytes(path: Path, num: int) -> bytes:
    """Return what a file begins with."""
    with path.open("rb") as file:
        return file.read(num)


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a plain file of at most so many. Raises OSError, whose `strerror` says what is there."""
    return read_opened(open_plain(path), most_bytes)


def read_opened(opened: int, most_bytes: int) -> bytes:
    """Return the bytes of an open plain file of at most so many, and close it. Raises OSError."""
    with os.fdopen(opened, "rb") as file:
        size_bytes = os.fstat(opened).st_size
        # what grows meanwhile, or tells no size as those of /proc, is bounded as well
        data = b"" if size_bytes > most_bytes else file.read(most_bytes + 1)
    if size_bytes > most_bytes or len(data) > most_bytes:
        found = format_bytes(max(size_bytes, len(data)))
        raise OSError(errno.EFBIG, f"{found}, more than {format_bytes(most_bytes)}")
    return data


def read_plain_text(path: Path, most_bytes: int) -> str:
    """Return the text of a plain file. Raises OSError, UnicodeDecodeError."""
    return read_plain(path, most_bytes).decode("utf-8")


def open_plain(path: Path, flags: int = 0) -> int:
    """Open a plain file for reading, without waiting where it is none. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        mode = os.fstat(opened).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(
                errno.EINVAL, f"{_KINDS.get(stat.S_IFMT(mode), 'something else')} and no plain file"
            )
    except OSError:
        os.close(opened)
        raise
    return opened
