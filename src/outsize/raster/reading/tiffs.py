"""Refuses TIFFs that are cut: a directory, or the values of a tag, are said to lie behind the end of the file.

libtiff leaves such tags out, the place on Earth among them, and reads on; of some it tells in a line of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from outsize.errors import DataError, explain
from outsize.files.plain import is_plain

_SIZES = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}
_WHOLE = {4: "I", 13: "I", 16: "Q", 18: "Q"}
_SUB_DIRECTORIES = 330
_FIRST_PRIVATE = 32_768
# Private tags that are read: where the picture lies on Earth, what it is masked and scaled by, metadata.
_READ_PRIVATE = {33550, 33922, 34264, 34735, 34736, 34737, 42112, 42113, 50844}
_MOST_TAGS = 65_535  # of a directory; libtiff refuses more
_MOST_DIRECTORIES = 4096  # of a file; what lies behind is left to libtiff


@dataclass(frozen=True)
class _Form:
    """How numbers are laid out: classic TIFF, or BigTIFF."""

    order: str
    is_big: bool

    @property
    def pointer(self) -> str:
        return self.order + ("Q" if self.is_big else "I")

    @property
    def entry(self) -> struct.Struct:
        """Tag, type, count, and the value or its place."""
        return struct.Struct(self.order + ("HHQ8s" if self.is_big else "HHI4s"))


def refuse_cut_tiff(path: Path) -> None:
    """Refuse a TIFF of which a directory or a tag lies behind its end; other files pass."""
    if not is_plain(path):
        return
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(16)
        order = {b"II": "<", b"MM": ">"}.get(start[:2])
        version = start[2:4] if order == "<" else start[3:1:-1]
        if order is None or version not in (b"*\0", b"+\0") or len(start) < 16:
            return
        form = _Form(order, version == b"+\0")
        left = [struct.unpack(form.pointer, start[8:] if form.is_big else start[4:8])[0]]
        seen: set[int] = set()
        while left and len(seen) < _MOST_DIRECTORIES:
            offset = left.pop()
            if offset == 0 or offset in seen:
                continue
            seen.add(offset)
            if offset >= size_bytes:
                raise _cut(path, size_bytes, offset + 1)
            left += _directory(path, file, form, offset, size_bytes)


def _directory(path: Path, file: BinaryIO, form: _Form, offset: int, size_bytes: int) -> list[int]:
    """Look through a directory; return where further ones are."""
    file.seek(offset)
    count = struct.Struct(form.order + ("Q" if form.is_big else "H"))
    head = file.read(count.size)
    num_tags = count.unpack(head)[0] if len(head) == count.size else 0
    if num_tags > _MOST_TAGS:
        return []
    body = file.read(num_tags * form.entry.size)
    body = body[: len(body) // form.entry.size * form.entry.size]
    pointer = file.read(struct.calcsize(form.pointer))
    further = (
        list(struct.unpack(form.pointer, pointer)) if len(pointer) == struct.calcsize(form.pointer) else []
    )
    for tag, kind, num, value in form.entry.iter_unpack(body):
        value_bytes = num * _SIZES.get(kind, 0)
        (place,) = struct.unpack(form.pointer, value)
        is_read = tag < _FIRST_PRIVATE or tag in _READ_PRIVATE
        if is_read and value_bytes > len(value) and place + value_bytes > size_bytes:
            raise _cut(path, size_bytes, place + value_bytes)
        if tag == _SUB_DIRECTORIES and kind in _WHOLE:
            if value_bytes > len(value):
                file.seek(place)
                held = file.read(min(value_bytes, _MOST_DIRECTORIES * _SIZES[kind]))
            else:
                held = value[:value_bytes]
            further += [each for (each,) in struct.iter_unpack(form.order + _WHOLE[kind], held)]
    return further


def _cut(path: Path, size_bytes: int, needed_bytes: int) -> DataError:
    found, need = f"{size_bytes:,} bytes", f"at least {needed_bytes:,}"
    return DataError(explain(f"{path} is truncated", found, need, "copy the file again from its source"))
