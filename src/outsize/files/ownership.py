"""What is outsize's own: a folder with its mark, a file with its name inside. Only that is written over or removed.

RUN/.outsize          the mark of a folder: what is in it by the names that outsize uses is its own
"made by outsize"     in the head of a single file: a tag of a GeoTIFF, a description of a layer, a comment
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from outsize.errors import OutputError, explain, listed
from outsize.files.beside import create
from outsize.files.plain import open_plain

MARK = ".outsize"
MADE_BY = "made by outsize"
_HEAD_BYTES = 1 << 18
_TEXT = (
    "outsize made this folder: what lies in it by names that outsize uses is written over or removed by it.\n"
)


@dataclass(frozen=True)
class Consent:
    """What a user has agreed to."""

    overwrite: bool = False  # of what is not outsize's own, or of an earlier training
    take_over: bool = False  # of a lock that was left on another host


NONE_GIVEN = Consent()


def mark(folder: Path) -> bool:
    """Mark a folder as outsize's own; return whether it was not before. Raises OSError."""
    if is_marked(folder):
        return False
    try:
        handle = create(folder / MARK)
    except FileExistsError:  # another process did it this moment
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_TEXT)
    return True


def is_marked(folder: Path) -> bool:
    """Say whether a folder is outsize's own."""
    return (folder / MARK).is_file()


def others_in(folder: Path) -> list[str]:
    """Return what a person sees in a folder; nothing of one that is not there."""
    try:
        return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def refuse_place(folder: Path, what: str, remedy: str) -> None:
    """Refuse a folder that no run can have for itself: the root of the disk, a home, what holds homes."""
    where = folder.resolve()
    if where == Path(where.anchor) or where in (_home(), *_home().parents):
        found = f"{where}, which is not for it alone"
        raise OutputError(explain(f"{what} cannot be {folder}", found, "a folder of its own", remedy))


def _home() -> Path:
    try:
        return Path.home().resolve()
    except RuntimeError:  # no such user in the container
        return Path(Path.cwd().anchor)


def is_ours(path: Path) -> bool:
    """Say whether a file carries our name; what is no plain file is nobody's to write over."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return MADE_BY.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False


def refuse_others(paths: Iterable[Path], remedy: str) -> None:
    """Refuse to write over files that are there and do not carry our name."""
    taken = [path for path in paths if os.path.lexists(path) and not is_ours(path)]
    if taken:
        found = "a file of other make" if len(taken) == 1 else f"files of other make: {listed(taken)}"
        need = "no file of that name, or one that outsize made"
        raise OutputError(explain(f"{taken[0]} would be written over", found, need, remedy))
