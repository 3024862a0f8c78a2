"""Finds files by patterns, and looks at a bounded number of names on the way: a pattern may name the whole disk."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from outsize.errors import DataError, explain

MAX_NAMES = 1_000_000
"""Files and folders that are looked at for one pattern: some seconds. The largest public sets hold a tenth of it."""


def matching(folder: Path, parts: Sequence[str], pattern: str) -> list[Path]:
    """Return what the parts of a pattern name in a folder, sorted: `*`, `?`, `[a-z]`; `**` for folders at any depth.

    Links to folders are not gone into by `**`. What cannot be looked into holds nothing.
    """
    look = _Look(pattern)
    return sorted(dict.fromkeys(_matching(folder, tuple(parts), look)))


def files_below(folder: Path) -> list[Path]:
    """Return all plain files in and below a folder, sorted."""
    return [path for path in matching(folder, ("**", "*"), str(folder)) if path.is_file()]


class _Look:
    """Counts the names that were looked at."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._left = MAX_NAMES

    def into(self, folder: Path) -> list[os.DirEntry[str]]:
        found = []
        try:
            with os.scandir(folder) as entries:
                for each in entries:
                    self._left -= 1
                    if self._left < 0:
                        need, remedy = "fewer", "name the folder of the images"
                        what = f"more than {MAX_NAMES:,} files and folders"
                        raise DataError(
                            explain(f"{self._pattern} looks through too much", what, need, remedy)
                        )
                    found.append(each)
        except OSError:  # no folder, or not for us
            return []
        return found


def _matching(folder: Path, parts: tuple[str, ...], look: _Look) -> Iterator[Path]:
    if not parts:
        yield folder
        return
    part, rest = parts[0], parts[1:]
    if part == "**":
        below = [folder]
        while below:
            here = below.pop()
            yield from _matching(here, rest, look)
            below += [Path(each.path) for each in look.into(here) if _is_own_folder(each)]
    elif any(sign in part for sign in "*?["):
        fits = _fits(part)
        for each in look.into(folder):
            if fits(each.name) and (not rest or each.is_dir()):
                yield from _matching(Path(each.path), rest, look)
    elif os.path.lexists(folder / part):
        yield from _matching(folder / part, rest, look)


def _fits(part: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(part)).match


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
