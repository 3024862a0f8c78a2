"""Small text files of labels as lines, and words of a line as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from outsize.errors import DataError, explain
from outsize.files.plain import read_plain_text

_MOST_BYTES = 2**24


def read_lines(path: Path, what: str = "a text file of boxes") -> list[str]:
    """Read a small text file as lines."""
    try:
        return read_plain_text(path, _MOST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "no UTF-8 text"
        raise DataError(
            explain(f"labels {path} cannot be read", found, what, "restore it from its source")
        ) from error


def numbers_of(words: Sequence[str], place: str) -> list[float]:
    """Return words as finite numbers; `place` is the file and line that they stand in."""
    numbers = []
    for word in words:
        try:
            numbers.append(float(word))
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise DataError(
                explain(f"{place}: a column is no number", repr(word)[:40], "a finite number", "correct it")
            )
    return numbers
