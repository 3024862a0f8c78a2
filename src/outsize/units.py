"""Bytes, seconds, times and pixels to text and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from outsize.errors import JobError, explain

Size = int | tuple[int, int]
"""Of a window in px: the side of a square, or height and width."""

_LEAST_SIDE_PX = 8
_BYTE_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(text: str | int) -> int:
    """Read "16GiB", "500 MB" or a plain number of bytes."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _BYTE_FACTORS:
        raise JobError(
            explain(
                "size not understood",
                repr(text),
                "a number of bytes, or a number and a unit",
                'write e.g. "16GiB"',
            )
        )
    return int(float(match[1]) * _BYTE_FACTORS[match[2].lower()])


def format_bytes(num_bytes: float) -> str:
    """Write bytes with a binary unit: 1536 -> "1.5 KiB"."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Write a duration the way a person says it: 1.8e-5 -> "18 us", 0.0042 -> "4.2 ms", 4000 -> "1 h 7 min"."""
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def format_count(number: int, thing: str, things: str = "") -> str:
    """Write how many there are of a thing, by default one whose plural ends in s: "1 tile", "7,200 steps"."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def format_pixels(height: int, width: int) -> str:
    """Write an image size, height before width: "10,000 x 8,000 px"."""
    return f"{height:,} x {width:,} px"


def parse_size(value: object) -> Size:
    """Read the size of a window: a number, or a list of height and width."""
    numbers = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(numbers) != 2 or any(type(number) is not int or number < _LEAST_SIDE_PX for number in numbers):
        raise ValueError(f"a whole number of at least {_LEAST_SIDE_PX}, or two: [height, width]")
    return size_of(*numbers)


def sides_of(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def size_of(height: int, width: int) -> Size:
    """Return the size of a window: of a square one number."""
    return height if height == width else (height, width)


def num_px_of(size: Size) -> int:
    """Count the pixels of a window."""
    height, width = sides_of(size)
    return height * width


def format_size(size: Size) -> str:
    """Write the size of a window: "512 px" of a square, else "512 x 1024 px"."""
    return f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"


def format_score(value: float | None) -> str:
    """Write a score; what is unknown is a dash."""
    return "-" if value is None else f"{value:.4f}"


def clock(time_s: int) -> str:
    """Write a time as ISO 8601, in UTC and to the minute."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def seconds_of(text: str) -> int:
    """Read a time as ISO 8601 has it; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        need = "ISO 8601, as 2020-10-31T08:00"
        raise ValueError(f"{text!r} is no time: {need}") from error
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
