"""Adds to the end of a file: all of it or, where the disk is full, nothing."""

from __future__ import annotations

from pathlib import Path


def append_whole(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file, or make it. Raises OSError, and the file is as it was before."""
    with path.open("ab", buffering=0) as file:
        size_bytes = file.tell()
        try:
            if file.write(data) != len(data):
                file.write(data[-1:])  # a nearly full disk takes a part; asked again, it says why
                raise OSError("only a part was written")
        except OSError:
            file.truncate(size_bytes)
            raise
